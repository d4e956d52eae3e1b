"""Contents of slime's `--custom-config-path` file for our rollout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.config.yaml_file import read_yaml
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.generate.episode import Player
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.records import CHAT

DEFAULT = Path(__file__).with_name("matching_config.yaml")
TRACKING = ("slime.utils", "slime.observability")
"""Packages that may contain slime's `logging_utils` and `metric_utils`: in version 0.3.1, and in later source."""


class SelfplaySection(Section):
    """Settings that slime has no arguments for."""

    model_config = ConfigDict(frozen=True)

    partner: str = "shy"
    """Partner in the other seats: `shy`, `chat` or another scripted partner."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 256
    """Token limit of one turn, its thoughts included; a longer turn is cut, and its player gets an error to read."""
    thinking: bool = False
    """Whether the policy thinks before each action, if its chat template has a switch for it.

    slime itself renders the first prompt, so --apply-chat-template-kwargs needs the same value.
    """
    chat: PartnerConfig = PartnerConfig()
    """The chat model, if `partner` is `chat`."""
    log_dir: Path | None = None
    """Folder for `questions.jsonl`; by default `logs/` in slime's `--save` folder."""


class RolloutConfig(BaseModel):
    """Content of the file. slime itself adds the keys to the arguments that it passes to hooks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_turns: Annotated[int, Field(ge=1)] = 20
    """Turns of the policy in one episode; an episode that needs more is truncated."""
    rollout_interaction_env_path: str = "selfplay_pipeline.slime.env"
    """Module of the environment, for users of slime's own rollout functions instead of ours."""
    selfplay: SelfplaySection = SelfplaySection()

    @classmethod
    def of(cls, args: Any) -> RolloutConfig:
        """Returns the configuration in slime's arguments.

        Raises:
            UserError: A value is wrong, or `selfplay` has an unknown key.
        """
        given = {name: getattr(args, name) for name in cls.model_fields if getattr(args, name, None) is not None}
        return _validated(given, "--custom-config-path")

    @classmethod
    def read(cls, path: Path) -> RolloutConfig:
        """Returns the configuration in a file, read as slime will read it.

        Raises:
            UserError: The file is missing, is no YAML, or has an unknown key or a wrong value.
        """
        check_regular(path, "selfplay_pipeline/slime/matching_config.yaml is one")
        return _validated(read_yaml(path).data, str(path))

    def player(self, *games: Game) -> Player:
        """Returns the partner.

        Args:
            games: Games that the partner plays.

        Raises:
            UserError: The partner's name is unknown, or the chat partner cannot be reached as configured.
        """
        name = self.selfplay.partner
        if name == CHAT:
            from selfplay_pipeline.generate.chat_model import ChatClient
            from selfplay_pipeline.generate.chat_player import chat_player

            return chat_player(ChatClient(self.selfplay.chat), *games)
        scripted = sorted({player for game in games for player in game.players})
        if name not in scripted:
            raise UserError(f"selfplay.partner: there is no {name!r}; there are {CHAT}, {', '.join(scripted)}")
        return script_player(name)

    def log_dir(self, args: Any) -> Path:
        """Returns the folder for logs of episodes."""
        return self.selfplay.log_dir or Path(getattr(args, "save", None) or "data/slime") / "logs"


def _validated(data: dict[str, Any], where: str) -> RolloutConfig:
    try:
        return RolloutConfig.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {explain(error)}; compare it with {DEFAULT.name} of the package") from None
