"""The player `chat`: a chat model behind an API, with its own system prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.templates import PromptTemplate
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import make_game, partner_prompts
from selfplay_pipeline.generate.chat_model import ChatClient
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.outside_text import Message, SeatedChat
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import CHAT, PartnerUsage, SeatRecord


@dataclass(frozen=True)
class ChatPartner:
    """A chat model as a player. It receives the same observations as any player, under its own system prompt.

    If a reply is missing, the episode ends (status `engine_failure`) and the run continues.
    """

    client: ChatClient
    prompt: PromptTemplate

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="chat", name=CHAT)

    @classmethod
    def of(cls, client: ChatClient, *games: Game) -> ChatPartner:
        """Returns the player that the client's configuration describes.

        Args:
            client: Client of the endpoint.
            games: Games whose built-in prompts `partner.prompt` may name.

        Raises:
            UserError: The prompt is missing or cannot be rendered.
        """
        return cls(client, _template(client.config.prompt, games))

    def sit(self, seat: Seat) -> SeatedChat:
        system = self.prompt.render(rules=seat.opening.system)
        seated = SeatedChat(replace(seat.opening, system=system))

        def count(used: PartnerUsage) -> None:
            seated.usage = (seated.usage or PartnerUsage()) + used

        async def ask(messages: list[Message]) -> Reply:
            return await self.client.reply(messages, seat.seed, count)

        seated.ask = ask
        return seated


def partner_arguments(config: Config, players: Iterable[str]) -> dict[str, Any]:
    """Returns the settings that decide the answers of `chat`, by dotted keys; empty if `chat` is not a player.

    Raises:
        UserError: The prompt or the address is missing, or the prompt cannot be rendered.
    """
    if CHAT not in players:
        return {}
    partner, game = config.partner, make_game(config.game)
    fingerprint = hashlib.sha256(_template(partner.prompt, [game]).source.encode()).hexdigest()[:12]
    return deciding(partner, "generate", "partner.") | {
        "partner.endpoint": partner.endpoint,
        "partner.prompt": f"{partner.prompt} ({fingerprint})",
    }


def _template(prompt: str, games: Iterable[Game]) -> PromptTemplate:
    built_in = partner_prompts(*games)
    path = built_in.get(prompt, Path(prompt))
    if not path.is_file():
        known = ", ".join(sorted(built_in))
        reason = "Is a directory" if path.is_dir() else "No such file or directory"
        raise UserError(f"partner.prompt: {prompt!r}: {reason}; give a file or a built-in prompt ({known or 'none'})")
    template = PromptTemplate(path, "partner.prompt")
    template.render(rules="The rules.")  # an error in the prompt is raised before anything is written
    return template
