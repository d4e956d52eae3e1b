"""Records of episodes, one JSON line each: the format that `generate` writes and `read_records.py` reads."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import fmean
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from selfplay_pipeline.config.schema import DATE, History
from selfplay_pipeline.engines.types import ROUNDING
from selfplay_pipeline.games.base import Outcome, Step
from selfplay_pipeline.generate.token_streams import LEAST_LOGPROB, MAX_COUNT, Fault, Lists, Streams, first_fault
from selfplay_pipeline.metrics.signal import Scored

SCHEMA_VERSION: Literal[2] = 2
POLICY = "policy"
"""Name of the player that is the trained checkpoint."""
CHAT = "chat"
"""Name of the player that is a chat model behind an API."""
PERSON = "person"
"""Name of a person as a player; also stands for engine and model in the records of a person's seat."""

Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


def _is_none(value: Any) -> bool:
    return value is None


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class _WithExtra(_Record):
    """A record to which an experiment may add its own keys; the module that writes a key also reads and checks it."""

    extra: dict[str, Any] = Field(default={}, exclude_if=lambda extra: not extra)
    """Values that an experiment adds, as JSON; absent in all other episodes."""

    def with_extra(self, **added: Any) -> Self:
        """Returns the record with more keys in `extra`."""
        return self.model_copy(update={"extra": self.extra | added})


class ChatMessage(_Record):
    """One message of a conversation, in the format of chat templates."""

    role: Literal["system", "user", "assistant"]
    content: str


class TurnRecord(_WithExtra):
    """One turn of the dialogue."""

    seat: Count
    text: str
    action: str
    """Parsed action: one of the game's actions, or `invalid`."""
    proposal: Any = None
    """Proposal that a legal action makes to the other players, in a format defined by the game."""
    error: str | None = None
    """Reason for rejecting an illegal action."""
    error_kind: str | None = None
    """Category of `error`, as defined by the game."""
    finish_reason: str
    """Finish reason of the engine or chat model: `stop`, or `length` if the turn was cut.

    It is `scripted` or `person` for a scripted player or a person.
    """

    @classmethod
    def of(cls, seat: int, text: str, step: Step, finish_reason: str) -> TurnRecord:
        """Returns the record of a turn and its result."""
        return cls(
            seat=seat,
            text=text,
            action=step.action,
            proposal=step.decision,
            error=step.error,
            error_kind=step.error_kind,
            finish_reason=finish_reason,
        )


class Trajectory(_Record):
    """Token stream of one seat: `prompt_ids`, then completions (mask 1) and observations (mask 0).

    With rendered history, it is the stream of one turn: `prompt_ids` hold the conversation before it, and the response
    is one completion.

    `response_ids`, `response_mask` and `response_logprobs` have the same length and end with the last sampled token;
    they are empty if the seat had no turn. Log-probs are natural logarithms under the temperature-scaled
    distribution, 0.0 where the mask is 0.
    """

    seat: Count
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[Literal[0, 1]]
    response_logprobs: list[float]
    messages: list[ChatMessage]
    """The whole conversation from the player's view, with the player's own thoughts.

    With rendered history, it ends with the turn, and only the last trajectory of a seat has what was heard later.
    """
    num_prompt_messages: Count
    """Number of `messages` that `prompt_ids` contain."""

    @model_validator(mode="after")
    def _possible(self) -> Trajectory:
        fault = None if self._is_possible() else self.fault()
        if fault:
            raise ValueError(f"{fault.field} {fault.what}")
        if not bool(self.response_ids) <= self.num_prompt_messages <= len(self.messages):
            raise ValueError(f"num_prompt_messages is {self.num_prompt_messages} of {len(self.messages)} messages")
        return self

    def _is_possible(self) -> bool:
        """Whether a quick check finds no fault; if False, `fault` must decide. The type limits masks to 0 and 1."""
        mask, length = self.response_mask, len(self.response_ids)
        if not (len(mask) == len(self.response_logprobs) == length and length and mask[-1] and self.prompt_ids):
            return False
        try:
            prompt, response = array("I", self.prompt_ids), array("I", self.response_ids)
        except OverflowError:
            return False
        logprobs = np.frombuffer(array("d", self.response_logprobs))
        return bool(
            max(np.frombuffer(ids, np.uint32).max() for ids in (prompt, response)) < MAX_COUNT
            and LEAST_LOGPROB <= logprobs.min() <= logprobs.max() <= ROUNDING
            and not logprobs[np.frombuffer(bytes(mask), np.uint8) == 0].any()
        )

    def fault(self, vocabulary: int | None = None) -> Fault | None:
        """Returns the first impossible value of the token fields; None if all are possible.

        Args:
            vocabulary: Size of the model's vocabulary; None if it is unknown.

        Raises:
            ValueError: A token id needs more than 64 bits.
        """
        try:
            streams = Streams(
                Lists.one(self.prompt_ids, np.int64),
                Lists.one(self.response_ids, np.int64),
                Lists.one(self.response_mask, np.int64),
                Lists.one(self.response_logprobs, np.float64),
            )
        except OverflowError:
            raise ValueError("a token id needs more than 64 bits") from None
        return first_fault(streams, vocabulary)


class OutcomeRecord(_Record):
    """Outcome of an episode. All rewards are 0 if the players missed the game's goal."""

    status: str
    """A value of `Status`, or one of the game's goals."""
    score: float
    best: float = Field(gt=0.0)
    normalized_reward: float = Field(ge=0.0, le=1.0)
    """Mean reward of the seats; score / best in a game whose seats share one reward."""
    rewards: list[Annotated[float, Field(ge=0.0, le=1.0)]] | None = Field(default=None, exclude_if=_is_none)
    """Reward of each seat; written only if the seats' rewards differ."""
    proposal: Any
    """Final decision, in a format defined by the game."""
    num_turns: Count
    num_messages: Count
    num_proposals: Count
    num_illegal: Count

    @classmethod
    def of(cls, outcome: Outcome) -> OutcomeRecord:
        """Returns the record of an outcome."""
        differ = len(set(outcome.rewards)) > 1
        return cls(
            status=outcome.status,
            score=outcome.score,
            best=outcome.best,
            normalized_reward=fmean(outcome.rewards) if differ else outcome.rewards[0],
            rewards=list(outcome.rewards) if differ else None,
            proposal=outcome.decision,
            num_turns=outcome.num_turns,
            num_messages=outcome.num_messages,
            num_proposals=outcome.num_proposals,
            num_illegal=outcome.num_illegal,
        )

    def mean_reward_of(self, seats: Sequence[int]) -> float:
        """Returns the mean reward of the given seats."""
        return self.normalized_reward if self.rewards is None else fmean(self.rewards[seat] for seat in seats)

    def reward_of(self, seat: int) -> float:
        """Returns the reward of one seat."""
        return self.normalized_reward if self.rewards is None else self.rewards[seat]


class PolicyRecord(_Record):
    """A checkpoint and its sampling parameters."""

    checkpoint: str
    weights: str = ""
    """Content hash of the checkpoint when the engine loaded it.

    It is empty if no checkpoint decides the turns, or if an attached server played a hub model.
    """
    iteration: int
    engine: str
    temperature: float = Field(ge=0.0)
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    max_new_tokens: int = Field(gt=0)
    thinking: bool = False
    """Value of the switch for thoughts, for chat templates that have one."""
    template_args: dict[str, Any] = Field(default={}, exclude_if=lambda args: not args)
    """Further arguments of the chat template."""
    date: str = Field(default=DATE, exclude_if=lambda date: date == DATE)
    """Date of the chat template's clock."""
    history: History = Field(default="appended", exclude_if=lambda history: history == "appended")
    """Whether a prompt holds the model's earlier turns as they were sampled, or as the chat template renders them."""

    def __hash__(self) -> int:  # a dict has none
        return hash((self.checkpoint, self.weights, self.iteration))

    @property
    def template(self) -> dict[str, Any]:
        """All that the chat template is given beside messages."""
        return {"thinking": self.thinking, "template_args": self.template_args, "date": self.date}


Kind = Literal["policy", "checkpoint", "script", "chat", "person"]
"""Kind of player; `policy` is the checkpoint of the command, `checkpoint` is any other one."""


class SeatRecord(_Record):
    """The player that held one seat of an episode."""

    kind: Kind
    name: str
    trained: bool = False
    """Whether the seat's turns are training data; an episode has trajectories of trained seats only."""
    policy: PolicyRecord | None = Field(default=None, exclude_if=_is_none)
    """Checkpoint that held the seat, with its sampling parameters; None for any other kind of player."""

    @classmethod
    def named(cls, name: str, policy: PolicyRecord, weights: Mapping[str, str]) -> SeatRecord:
        """Returns the record of the player that commands know by this name.

        Args:
            name: Name of the player.
            policy: The trained checkpoint, which is the player `POLICY`.
            weights: Content hashes of other checkpoints by name; they have the same sampling parameters.
        """
        if name == POLICY:
            return cls(kind="policy", name=name, trained=True, policy=policy)
        if name in weights:
            other = policy.model_copy(update={"checkpoint": name, "weights": weights[name]})
            return cls(kind="checkpoint", name=name, policy=other)
        kinds: dict[str, Kind] = {CHAT: "chat", PERSON: "person"}
        return cls(kind=kinds.get(name, "script"), name=name)

    @property
    def identity(self) -> str:
        """Content hash of a checkpoint; the player's name if there is none."""
        return (self.policy and self.policy.weights) or self.name

    @model_validator(mode="after")
    def _samples(self) -> SeatRecord:
        if (self.policy is None) == (self.kind in ("policy", "checkpoint")):
            raise ValueError(f"field 'policy': a seat of kind {self.kind!r} has {'none' if self.policy else 'one'}")
        if self.trained and self.policy is None:
            raise ValueError(f"field 'trained': a {self.kind} cannot be trained")
        return self


class PartnerUsage(_Record):
    """Requests to a chat model behind an API, with their tokens and price."""

    requests: int = 0
    """Number of requests sent, with retries."""
    retries: int = 0
    cache_hits: int = 0
    """Number of answers from the cache, for which no request was sent."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0
    """Price in US dollars of the tokens that the endpoint reported, at the configured prices."""
    counted_hits: int = 0
    """Number of `cache_hits` whose tokens the cache knows; the next two fields are of these answers."""
    cached_completion_tokens: int = 0
    cached_dollars: float = 0.0
    """Price in US dollars that the answers from the cache had when they were sent, at the prices configured now."""

    def __add__(self, other: PartnerUsage) -> PartnerUsage:
        mine, theirs = self.model_dump(), other.model_dump()
        return PartnerUsage(**{name: mine[name] + theirs[name] for name in mine})

    def with_cached(self) -> tuple[int, float] | None:
        """Returns the completion tokens and the price of all answers, those from the cache included.

        It is None if the endpoint reports no tokens, or the cache does not know those of an answer.
        """
        tokens = self.completion_tokens + self.cached_completion_tokens
        if not tokens or self.counted_hits < self.cache_hits:
            return None
        return tokens, self.dollars + self.cached_dollars


class EpisodeRecord(_WithExtra):
    """One episode of one game state.

    `seats` gives the player of each seat. A file stores `players`, `other_weights` and `policy` if they determine the
    seats, and otherwise the list `seats`.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    schema_version: Literal[2] = SCHEMA_VERSION
    episode_id: str
    group_index: Count
    """Number of the game state; all episodes of one state form a group."""
    episode: Count
    seed: int
    game: str
    """Name of the game."""
    state: dict[str, Any]
    players: list[str] | None = Field(default=None, exclude_if=_is_none)
    """Names of the players by seat; None if `all_seats` is set."""
    other_weights: dict[str, str] | None = Field(default=None, exclude_if=_is_none)
    """Content hashes of checkpoints other than the policy, by their names in `players`."""
    all_seats: list[SeatRecord] | None = Field(default=None, alias="seats", exclude_if=_is_none)
    """Records of all seats; None if `players`, `other_weights` and `policy` determine them."""
    turns: list[TurnRecord]
    trajectories: list[Trajectory]
    """One trajectory per trained seat; with rendered history, one per turn of a trained seat, in order."""
    outcome: OutcomeRecord
    policy: PolicyRecord | None = Field(default=None, exclude_if=_is_none)
    """The player `policy`, even if it held no seat; None if `all_seats` is set."""
    prompt_tokens: int = 0
    """Number of tokens of all prompts sent to the engine in the episode."""
    cached_tokens: int = 0
    """Number of the prompt tokens that were in the engine's prefix cache."""
    partner: PartnerUsage | None = None
    """Usage of the chat model; None if no chat model held a seat."""

    @classmethod
    def of(cls, seats: Sequence[SeatRecord], policy: PolicyRecord, **rest: Any) -> EpisodeRecord:
        """Returns an episode of these seats; `all_seats` is set only if the shorter fields cannot express them.

        Args:
            seats: Records of all seats.
            policy: The player `policy`, even if it holds no seat.
            rest: All other fields.
        """
        players = [seat.name for seat in seats]
        weights = {seat.name: seat.policy.weights for seat in seats if seat.kind == "checkpoint" and seat.policy}
        if _seats_named(tuple(players), policy, tuple(weights.items())) != tuple(seats):
            return cls(all_seats=list(seats), **rest)
        return cls(players=players, other_weights=weights or None, policy=policy, **rest)

    @property
    def seats(self) -> list[SeatRecord]:
        """Record of each seat."""
        if self.all_seats is not None:
            return self.all_seats
        assert self.players is not None and self.policy is not None, "`_seats_exist` refuses such records"
        return [*_seats_named(tuple(self.players), self.policy, tuple((self.other_weights or {}).items()))]

    @property
    def seats_field(self) -> str:
        """Name of the field that lists the seats, for messages."""
        return "players" if self.all_seats is None else "seats"

    @property
    def trained_seats(self) -> list[int]:
        return [number for number, seat in enumerate(self.seats) if seat.trained]

    @property
    def checkpoints(self) -> list[str]:
        """Paths of the checkpoints that held seats, those of trained seats first."""
        seats = sorted(self.seats, key=lambda seat: not seat.trained)
        return [seat.policy.checkpoint for seat in seats if seat.policy is not None]

    def sampler_of(self, trajectory: Trajectory) -> PolicyRecord:
        """Returns the checkpoint that sampled a trajectory."""
        sampler = self.seats[trajectory.seat].policy
        assert sampler is not None, "`_seats_exist` refuses trajectories of other seats"
        return sampler

    def seats_of(self, player: str = "") -> list[int]:
        """Returns the seats of the named player. Without such seats, returns the trained seats, or else all seats."""
        held = [number for number, seat in enumerate(self.seats) if seat.name == player]
        return held or self.trained_seats or [*range(len(self.seats))]

    def scored(self, seats: Sequence[int]) -> list[Scored[int]]:
        """Returns the rewards of the given seats with their group keys."""
        partners = self.partners
        return [
            Scored(self.group_index, self.episode, seat, self.outcome.reward_of(seat), partner=partners)
            for seat in seats
        ]

    @property
    def partners(self) -> str:
        """Players of the untrained seats (names, or hashes of checkpoints) with their seats, joined."""
        others = [(number, seat.identity) for number, seat in enumerate(self.seats) if not seat.trained]
        return ", ".join(f"{number}: {name}" for number, name in others)

    @model_validator(mode="after")
    def _seats_exist(self) -> EpisodeRecord:
        if {self.players is None, self.policy is None} != {self.all_seats is not None}:
            raise ValueError("field 'seats': an episode has either this list, or 'players' and 'policy'")
        seats = self.seats
        recorded = [trajectory.seat for trajectory in self.trajectories]
        for name, found in (("turns", [turn.seat for turn in self.turns]), ("trajectories", recorded)):
            if found and max(found) >= len(seats):
                raise ValueError(
                    f"field '{self.seats_field}': has {len(seats)}, numbered from 0, but {name} are of {max(found)}"
                )
        strangers = [seat for seat in recorded if not seats[seat].trained]
        if strangers:
            raise ValueError(
                f"field 'trajectories': one is of seat {strangers[0]}, which was {seats[strangers[0]].name!r} "
                "and is not trained"
            )
        taken = Counter(turn.seat for turn in self.turns)
        for seat, number in Counter(recorded).items():
            policy = seats[seat].policy
            if number > (taken[seat] if policy and policy.history == "rendered" else 1):
                raise ValueError(
                    f"field 'trajectories': {number} are of seat {seat}: more than one, or more than its turns"
                )
        return self


@lru_cache(maxsize=64)
def _seats_named(
    players: tuple[str, ...], policy: PolicyRecord, weights: tuple[tuple[str, str], ...]
) -> tuple[SeatRecord, ...]:
    """Returns the records of the seats; cached, because the episodes of a file have the same players."""
    return tuple(SeatRecord.named(name, policy, dict(weights)) for name in players)
