"""What every game is made of. A second game is one file that implements `Game` and `Session`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np


class Status(StrEnum):
    """How a play ended. All but `AGREED` give reward 0."""

    AGREED = "agreed"
    """A full proposal was accepted; the reward is its score over the best achievable score."""
    TURN_LIMIT = "turn_limit"
    """`max_length` turns were taken, legal or not, without agreement."""
    ERROR_LIMIT = "error_limit"
    """One player made `max_errors` illegal actions in a row."""
    CONTEXT_LENGTH = "context_length"
    """The next turn might not have fitted into the model's context; nothing was truncated."""
    ENGINE_FAILURE = "engine_failure"
    """The engine gave no answer after all retries. Such a play gives no training rows."""


class ActionKind(StrEnum):
    """What a turn's text was understood as."""

    MESSAGE = "message"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"
    INVALID = "invalid"
    """Not an action of the game; the error observation says why."""


class ErrorKind(StrEnum):
    """What was wrong with an illegal action."""

    CUT = "cut"
    """The token limit of a turn cut it."""
    NO_TAG = "no_tag"
    """None of the four tags stands where an action starts."""
    SEVERAL_ACTIONS = "several_actions"
    """Tags of different actions."""
    EMPTY_MESSAGE = "empty_message"
    NOT_NOW = "not_now"
    """An answer without a proposal, or something else while a proposal waits for its answer."""
    MALFORMED = "malformed"
    """A proposal that leaves open which reviewer belongs to which paper."""
    UNKNOWN_NAME = "unknown_name"
    AMBIGUOUS_NAME = "ambiguous_name"
    REPEATED_NAME = "repeated_name"
    """A proposal that gives one paper two reviewers, or one reviewer two papers."""
    INCOMPLETE = "incomplete"
    """A proposal without a line for each paper."""


class ParseError(Exception):
    """The text is not a legal action; the message is shown to its author."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Action:
    """One parsed turn.

    Attributes:
        proposal: (reviewer, paper) index pairs, only of a legal proposal.
        words: what a message says, without its tag.
    """

    kind: ActionKind
    proposal: tuple[tuple[int, int], ...] | None = None
    words: str = ""


@dataclass(frozen=True)
class Step:
    """What one turn led to.

    Attributes:
        action: the parsed action; `INVALID` when the text was none.
        error: why the action was illegal, or None. An illegal action keeps the turn.
        error_kind: the same in one word, for counting.
        observations: new text for each seat, "" where a seat saw nothing new.
    """

    action: Action
    error: str | None
    observations: tuple[str, ...]
    error_kind: ErrorKind | None = None


@dataclass(frozen=True)
class Opening:
    """What one player reads before anything was said: the rules, then its own private view."""

    system: str
    observation: str


@dataclass(frozen=True)
class Outcome:
    """The end of a play. `normalized_reward` = score / best in [0, 1], 0 unless agreed."""

    status: Status
    score: float
    best: float
    normalized_reward: float
    proposal: tuple[tuple[int, int], ...] | None
    num_turns: int
    num_messages: int
    num_proposals: int
    num_illegal: int


class State(Protocol):
    """One sampled problem. `to_dict` is JSON; the game's `load_state` reads it back."""

    def to_dict(self) -> dict[str, Any]: ...


class Session(Protocol):
    """One play of one state: whose turn it is, what each player may see, how it ended."""

    @property
    def player(self) -> int: ...
    @property
    def status(self) -> Status | None: ...
    def opening(self, player: int) -> Opening: ...
    def step(self, text: str, *, cut: bool = False) -> Step: ...
    def abort(self, status: Status) -> None: ...
    def outcome(self) -> Outcome: ...


class Game(Protocol):
    """The rules under one configuration."""

    name: str
    num_players: int

    def sample_state(self, rng: np.random.Generator) -> State: ...
    def load_state(self, data: dict[str, Any]) -> State: ...
    def start(self, state: Any) -> Session: ...


@dataclass
class Counts:
    """What a session counts as it goes."""

    turns: int = 0
    messages: int = 0
    proposals: int = 0
    illegal: int = 0
    errors_in_a_row: list[int] = field(default_factory=list)


TRAIN, HELD_OUT, WARM_START, MONITOR, SEATS = range(5)
"""Seed spaces; none shares a random stream with another. Of states to train on, to evaluate on, to imitate on, and to
compare the iterations of a run on (so that the best of them can still be evaluated honestly); of partners' choices."""


def state_rng(seed: int, index: int, space: int = TRAIN) -> np.random.Generator:
    """The generator of state number `index`: the same on any machine, in any order of sampling."""
    return np.random.default_rng([space, seed, index])
