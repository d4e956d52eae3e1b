"""One episode as one JSON line: the contract between `generate` and everything that reads episodes."""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.core.small_files import check_regular, parse_json
from selfplay_pipeline.engines.types import ROUNDING
from selfplay_pipeline.games.base import CUT, INVALID, SAME_SCORE, Game, Outcome, State, Status, Step
from selfplay_pipeline.games.registry import game_named
from selfplay_pipeline.generate.streams import LEAST_LOGPROB, MAX_COUNT, Fault, Lists, Streams, first_fault
from selfplay_pipeline.generate.upgrade import OLD, upgrade

SCHEMA_VERSION: Literal[2] = 2
POLICY = "policy"
"""Name of the player whose trajectories are recorded."""
SAME_REWARD = SAME_SCORE
"""Rewards closer than this are alike."""
READ_AT_ONCE = 1 << 20
"""Bytes; some lines, of which Python's own 8 kB hold none."""
MAX_LINE = 1 << 26
"""Bytes of one episode as JSON. An episode of two times 100,000 tokens takes about 6 MB."""
CHAT = "chat"
"""Name of the chat model behind an API."""


Count = Annotated[int, Field(ge=0, lt=MAX_COUNT)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ChatMessage(_Record):
    """One message of a conversation, as chat templates read it."""

    role: Literal["system", "user", "assistant"]
    content: str


class TurnRecord(_Record):
    """One turn of the dialogue."""

    seat: Count
    text: str
    action: str
    """What the text was understood as: one of the game's actions, or `invalid`."""
    proposal: Any = None
    """What a legal action puts to the others, in the game's own form."""
    error: str | None = None
    """Why the action was illegal."""
    error_kind: str | None = None
    """The same in one word of the game's."""
    finish_reason: str
    """The engine's or chat model's: stop, or length when the turn was cut.

    `scripted` or `human` for a seat without either.
    """

    @classmethod
    def of(cls, seat: int, text: str, step: Step, finish_reason: str) -> TurnRecord:
        """A turn and what it led to."""
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
    """One player's token stream: `prompt_ids`, then own turns (mask 1) and observations (mask 0).

    `response_ids`, `response_mask` and `response_logprobs` have one length and end with the player's last own
    token; they are empty if the seat never spoke. Log-probs are natural logarithms under the
    temperature-scaled distribution, 0.0 where the mask is 0.
    """

    seat: Count
    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[Literal[0, 1]]
    response_logprobs: list[float]
    messages: list[ChatMessage]
    """The whole conversation from this player's view, own thoughts included."""
    num_prompt_messages: Count
    """How many of `messages` are in `prompt_ids`."""

    @model_validator(mode="after")
    def _possible(self) -> Trajectory:
        fault = None if self._is_possible() else self.fault()
        if fault:
            raise ValueError(f"{fault.field} {fault.what}")
        if not bool(self.response_ids) <= self.num_prompt_messages <= len(self.messages):
            raise ValueError(f"num_prompt_messages is {self.num_prompt_messages} of {len(self.messages)} messages")
        return self

    def _is_possible(self) -> bool:
        """A quick check: True means that `fault` would find nothing. Masks are 0 and 1 by type."""
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
        """What is impossible about the tokens, if anything.

        Args:
            vocabulary: how many token ids the model has, where that is known.

        Raises:
            ValueError: a number needs more than 64 bits.
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


def _is_none(value: Any) -> bool:
    return value is None


class OutcomeRecord(_Record):
    """How the episode ended; `normalized_reward` = score / best, 0 short of the game's goal."""

    status: str
    """A `Status`, or one of the game's goals."""
    score: float
    best: float = Field(gt=0.0)
    normalized_reward: float = Field(ge=0.0, le=1.0)
    """The mean over the seats."""
    rewards: list[Annotated[float, Field(ge=0.0, le=1.0)]] | None = Field(default=None, exclude_if=_is_none)
    """The reward of each seat; written only where the seats' rewards differ."""
    proposal: Any
    """What was decided, in the game's own form."""
    num_turns: Count
    num_messages: Count
    num_proposals: Count
    num_illegal: Count

    @classmethod
    def of(cls, outcome: Outcome) -> OutcomeRecord:
        """The outcome of an episode."""
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
        """The mean reward of some seats."""
        return self.normalized_reward if self.rewards is None else fmean(self.rewards[seat] for seat in seats)

    def reward_of(self, seat: int) -> float:
        """The reward of one seat."""
        return self.normalized_reward if self.rewards is None else self.rewards[seat]


class PolicyRecord(_Record):
    """Who played and how it sampled."""

    checkpoint: str
    weights: str = ""
    """Content hash of the checkpoint when its engine loaded it.

    It is empty where no checkpoint's files decide the turns, and where it was not noted.
    """
    iteration: int
    engine: str
    temperature: float = Field(ge=0.0)
    top_p: float = 1.0
    top_k: int = -1
    repetition_penalty: float = 1.0
    max_new_tokens: int = Field(gt=0)
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


class EpisodeRecord(_Record):
    """One episode of one game state."""

    schema_version: Literal[2] = SCHEMA_VERSION
    episode_id: str
    group_index: Count
    """The game state's number: all episodes of one state are one group."""
    episode: Count
    seed: int
    game: str
    """Name of the game whose rules `state` belongs to."""
    state: dict[str, Any]
    players: list[str] = [POLICY, POLICY]
    """Who held each seat: the policy, another checkpoint or a scripted partner."""
    other_weights: dict[str, str] | None = Field(default=None, exclude_if=_is_none)
    """Content hashes of the other checkpoints that held seats, by their names in `players`."""
    turns: list[TurnRecord]
    trajectories: list[Trajectory]
    """One for each seat that the policy held."""
    outcome: OutcomeRecord
    policy: PolicyRecord
    prompt_tokens: int = 0
    """Tokens of all prompts sent to the engine in this episode."""
    cached_tokens: int = 0
    """How many of the prompt tokens the engine had in its cache."""
    partner: PartnerUsage | None = None
    """What a chat model in one of the seats was asked, and what that cost."""

    def seats_of(self, player: str) -> list[int]:
        """The seats that a player held; all seats where it held none."""
        return [seat for seat, name in enumerate(self.players) if name == player] or [*range(len(self.players))]

    @model_validator(mode="after")
    def _seats_exist(self) -> EpisodeRecord:
        seats = len(self.players)
        trained = [trajectory.seat for trajectory in self.trajectories]
        for field, found in (("turns", [turn.seat for turn in self.turns]), ("trajectories", trained)):
            if found and max(found) >= seats:
                raise ValueError(f"field 'players': has {seats}, numbered from 0, but {field} are of {max(found)}")
        strangers = [seat for seat in trained if self.players[seat] != POLICY]
        if strangers:
            raise ValueError(
                f"field 'trajectories': one is of seat {strangers[0]}, which was {self.players[strangers[0]]!r}"
            )
        if len(set(trained)) < len(trained):
            raise ValueError("field 'trajectories': two are of one seat")
        return self


def parse_episode(line: bytes) -> EpisodeRecord:
    """One line as an episode, which its game's rules allow.

    Raises:
        ValueError: it is none; the message names the field.
    """
    try:
        record = record_of(line)
    except ValidationError as error:
        raise ValueError(explain(error)) from None
    if OLD.search(line) or not _has_no_key_twice(line, record):
        json.loads(line, object_pairs_hook=_different)
    check_rules(record)
    return record


def record_of(line: bytes) -> EpisodeRecord:
    """One line of this schema version or an earlier one, not yet compared with the rules of its game.

    Raises:
        ValueError: it is none; a `ValidationError` where it has other fields than an episode.
    """
    if OLD.search(line):
        found = parse_json(line)
        return EpisodeRecord.model_validate(upgrade(found) if isinstance(found, dict) else found)
    return EpisodeRecord.model_validate_json(line)


def check_rules(record: EpisodeRecord) -> None:
    """Whether an episode can have been, by the rules of its game.

    Raises:
        ValueError: it cannot; the message names the field.
    """
    try:
        game = game_named(record.game)
    except ValueError as error:
        raise ValueError(f"field 'game': {error}") from None
    if len(record.players) != len(game.roles):
        raise ValueError(f"field 'players': has {len(record.players)}, but the game has {len(game.roles)}")
    try:
        state = _load(record.game, json.dumps(record.state, sort_keys=True, allow_nan=False))
    except (UserError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"field 'state': {error}") from None
    for number, turn in enumerate(record.turns):
        _check_turn(f"turns.{number}", turn, game, state)
    outcome = record.outcome
    if outcome.rewards is not None:
        _check_rewards(outcome.rewards, outcome.normalized_reward, game)
    if abs(outcome.best - (best := game.best(state))) > SAME_REWARD:
        raise ValueError(f"field 'outcome.best': {outcome.best:g}, but the state's best score is {best}")
    if outcome.status in game.goals:
        game.check_outcome(state, outcome)
    elif outcome.status not in tuple(Status):
        known = ", ".join(sorted({*game.goals, *Status}))
        raise ValueError(f"field 'outcome.status': {outcome.status!r} is none of {known}")
    elif outcome.normalized_reward > SAME_REWARD:
        raise ValueError(
            f"field 'outcome.normalized_reward': {outcome.normalized_reward}, but {outcome.status} gives 0"
        )


def _check_rewards(rewards: list[float], mean: float, game: Game) -> None:
    if len(rewards) != len(game.roles):
        raise ValueError(f"field 'outcome.rewards': has {len(rewards)}, but the game has {len(game.roles)} players")
    if abs(sum(rewards) / len(rewards) - mean) > SAME_REWARD:
        raise ValueError(f"field 'outcome.normalized_reward': {mean}, but 'rewards' have another mean")


def _check_turn(where: str, turn: TurnRecord, game: Game, state: State) -> None:
    if turn.action not in (*game.actions, INVALID):
        known = ", ".join(sorted({*game.actions, INVALID}))
        raise ValueError(f"field '{where}.action': {turn.action!r} is none of {known}")
    if turn.error_kind is not None and turn.error_kind not in (CUT, *game.error_kinds):
        raise ValueError(f"field '{where}.error_kind': the game knows no {turn.error_kind!r}")
    if turn.proposal is not None:
        try:
            game.check_decision(state, turn.proposal)
        except ValueError as error:
            raise ValueError(f"field '{where}.proposal': {error}") from None


@lru_cache(maxsize=64)
def _load(game: str, state: str) -> State:
    return game_named(game).state_from_json(json.loads(state))


def _has_no_key_twice(line: bytes, record: EpisodeRecord) -> bool:
    """A quick check by counting: True means that no key is there twice, of which pydantic would take the last."""
    text = line.translate(None, b"0123456789.-,[]")  # what is left is short
    if b" :" in text or b"\t:" in text or b"\r:" in text:
        return False
    keys = text.count(b'":') - text.count(b'\\":')  # quotes inside of strings follow a backslash
    return keys == (
        _keys_set(record, record.outcome, record.policy, record.partner, *record.turns, *record.trajectories)
        + len(ChatMessage.model_fields) * sum(len(seat.messages) for seat in record.trajectories)
        + _keys(record.state)
        + _keys(record.other_weights)
    )


def _keys_set(*models: BaseModel | None) -> int:
    return sum(len(model.model_fields_set) for model in models if model is not None)


def _keys(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_keys, value.values()))
    if not isinstance(value, list) or isinstance(value[0] if value else 0, int):  # to miss some is safe
        return 0
    return sum(map(_keys, value))


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = Counter(key for key, _ in pairs)
    for key, count in keys.items():
        if count > 1:
            raise ValueError(f"field '{key}': is there {count} times; write it once")
    return dict(pairs)


def read_episodes(path: Path) -> Iterator[EpisodeRecord]:
    """Read the episodes of a file, one line at a time.

    Raises:
        UserError: the file is missing, or a line is bad; names file, line and field.
    """
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            yield parse_episode(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}") from None


def read_lines(path: Path, hint: str = "`selfplay generate` writes this file") -> Iterator[tuple[int, bytes]]:
    """All lines with their numbers, from 1; `hint` says what to do about a missing file.

    Raises:
        UserError: the file cannot be read, or a line is longer than `MAX_LINE`.
    """
    check_regular(path, hint)
    try:
        with path.open("rb", buffering=READ_AT_ONCE) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if len(line) > MAX_LINE:
                    raise UserError(f"{path}:{number}: longer than {MAX_LINE >> 20} MiB, the limit of a line; {hint}")
                yield number, line
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {hint}") from None
