"""One play as one JSON line: the contract between `generate` and everything that reads games."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.files import explain
from selfplay_pipeline.games.types import ActionKind, ErrorKind, Status
from selfplay_pipeline.small_files import check_regular

SCHEMA_VERSION: Literal[1] = 1
POLICY = "policy"
"""Name of the player whose trajectories are recorded."""
CHAT = "chat"
"""Name of the chat model behind an API."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ChatMessage(_Record):
    """One message of a conversation, as chat templates read it."""

    role: Literal["system", "user", "assistant"]
    content: str


class TurnRecord(_Record):
    """One turn of the dialogue."""

    player: int
    text: str
    action: ActionKind
    """What the text was understood as."""
    proposal: list[tuple[int, int]] | None = None
    """(reviewer, paper) pairs of a legal proposal."""
    error: str | None = None
    """Why the action was illegal."""
    error_kind: ErrorKind | None = None
    finish_reason: str
    """The engine's or chat model's: stop, or length when the turn was cut. `scripted` for a seat without either."""


class Trajectory(_Record):
    """One player's token stream: `prompt_ids`, then own turns (mask 1) and observations (mask 0).

    `response_ids`, `response_mask` and `response_logprobs` have one length and end with the player's last own
    token; they are empty if the seat never spoke. Log-probs are natural logarithms under the
    temperature-scaled distribution, 0.0 where the mask is 0.
    """

    player_index: int
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[Literal[0, 1]]
    response_logprobs: list[float]
    messages: list[ChatMessage]
    """The whole conversation from this player's view, own thoughts included."""
    num_prompt_messages: int
    """How many of `messages` are in `prompt_ids`."""

    @model_validator(mode="after")
    def _consistent(self) -> Trajectory:
        length = len(self.response_ids)
        if len(self.response_mask) != length or len(self.response_logprobs) != length:
            raise ValueError(
                f"response_ids has {length} entries, response_mask {len(self.response_mask)}, "
                f"response_logprobs {len(self.response_logprobs)}"
            )
        if length and self.response_mask[-1] != 1:
            raise ValueError("response_mask must end with 1, the player's last own token")
        if any(
            logprob != 0.0 for logprob, own in zip(self.response_logprobs, self.response_mask, strict=True) if not own
        ):
            raise ValueError("response_logprobs must be 0.0 where response_mask is 0")
        return self


class OutcomeRecord(_Record):
    """How the play ended; `normalized_reward` = score / best, 0 unless agreed."""

    status: Status
    score: float
    best: float
    normalized_reward: float = Field(ge=0.0, le=1.0)
    proposal: list[tuple[int, int]] | None
    num_turns: int
    num_messages: int
    num_proposals: int
    num_illegal: int


class PolicyRecord(_Record):
    """Who played and how it sampled."""

    checkpoint: str
    iteration: int
    engine: str
    temperature: float
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    max_new_tokens: int
    thinking: bool = False
    """What chat templates that have the switch `enable_thinking` were told."""


class PartnerUsage(_Record):
    """What a chat model behind an API was asked, and what that cost."""

    requests: int = 0
    """Sent, retries included."""
    retries: int = 0
    cache_hits: int = 0
    """Answers that were taken from the cache; nothing was sent for these."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    """US dollars at the configured prices, of the tokens that the endpoint reported."""

    def __add__(self, other: PartnerUsage) -> PartnerUsage:
        mine, theirs = self.model_dump(), other.model_dump()
        return PartnerUsage(**{name: mine[name] + theirs[name] for name in mine})


class PlayRecord(_Record):
    """One play of one game state."""

    schema_version: Literal[1] = SCHEMA_VERSION
    game_id: str
    group_index: int = Field(ge=0)
    """The game state's number: all plays of one state are one group."""
    play: int = Field(ge=0)
    seed: int
    game: str
    """Name of the game whose rules `state` belongs to."""
    state: dict[str, Any]
    players: list[str] = [POLICY, POLICY]
    """Who held each seat: the policy, another checkpoint or a scripted partner."""
    turns: list[TurnRecord]
    trajectories: list[Trajectory]
    """One for each seat that the policy held."""
    outcome: OutcomeRecord
    policy: PolicyRecord
    prompt_tokens: int = 0
    """Tokens of all prompts sent to the engine in this play."""
    cached_tokens: int = 0
    """Of those, how many the engine did not have to compute."""
    partner: PartnerUsage | None = None
    """Of a chat model in one of the seats."""


def read_games(path: Path) -> Iterator[PlayRecord]:
    """Read plays one line at a time.

    Raises:
        UserError: the file is missing, or a line is bad; names file, line and field.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            yield PlayRecord.model_validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {explain(error)}") from None


def read_lines(path: Path, hint: str = "`selfplay generate` writes this file") -> Iterator[tuple[int, bytes]]:
    """All lines with their numbers, from 1; `hint` says what to do about a missing file.

    Raises:
        UserError: the file cannot be read.
    """
    check_regular(path, hint)
    try:
        with path.open("rb") as file:
            yield from enumerate(file, start=1)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {hint}") from None
