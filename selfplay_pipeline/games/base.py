"""What every game is made of.

A game implements `Game` and `Session`; `registry.py` finds it. Outside its folder nobody knows its words: what other
parts want to know of a game, they ask through these classes and the abilities in `abilities.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from inspect import getfile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, TypeAlias

import numpy as np
from pydantic import ConfigDict, Field

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, as_text
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.silence import Silence, known_silence


class Status(StrEnum):
    """How an episode ends short of the game's goal; then every reward is 0. Reaching the goal has the game's own
    name."""

    TURN_LIMIT = "turn_limit"
    """The game's limit of turns was reached, legal and illegal ones counted."""
    ERROR_LIMIT = "error_limit"
    """One player made too many illegal actions in a row."""
    CONTEXT_LENGTH = "context_length"
    """The next turn might not have fitted into the model's context; nothing was truncated."""
    ENGINE_FAILURE = "engine_failure"
    """The engine gave no answer after all retries. Such an episode gives no training rows."""


AGREED = "agreed"
"""How an episode ends that reached the goal, in games with one goal."""
MESSAGE = "message"
"""The action that says something to the others, in any game."""
INVALID = "invalid"
"""Stands for a text that is no action of the game; the error observation says why."""
SAME_SCORE = 1e-6
"""Scores and rewards closer than this are alike."""
CUT = "cut"
"""The kind of error of a turn that the token limit cut."""


class ParseError(Exception):
    """The text is not a legal action.

    Attributes:
        kind: what is wrong in one word, `CUT` or one of the game's `error_kinds`.
    """

    def __init__(self, kind: str, message: str) -> None:
        """The message is shown to the text's author."""
        super().__init__(message)
        self.kind = kind


class GameSettings(Section):
    """The configuration of a game, as far as every game has the same."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Which game this is."""
    max_length: Annotated[int, Field(ge=1)] = 20
    """Turns of all players together, illegal ones included, after which an episode ends short of the goal."""
    mute: bool = False
    """Messages reach the partner empty, as a bare `[message]`, which shows what a policy loses without them.

    Proposals and answers never carry words of their own, muted or not.
    """
    prompts: str = "default"
    """Name of a built-in set of prompts (default, compact), or a folder with the same template files."""


@dataclass(frozen=True)
class Step:
    """What one turn led to.

    Attributes:
        action: one of the game's `actions`, or `INVALID`.
        decision: what a legal action puts to the others or decides, as JSON; None where the action has nothing such.
        error: why the action was illegal, or None. An illegal action keeps the turn.
        error_kind: the same in one word, for counting.
        observations: new text for each seat, "" where a seat saw nothing new.
    """

    action: str
    observations: tuple[str, ...]
    decision: Any = None
    error: str | None = None
    error_kind: str | None = None


@dataclass(frozen=True)
class Opening:
    """What one player reads before anything was said: the rules, then its own private view."""

    system: str
    observation: str


@dataclass(frozen=True)
class Outcome:
    """The end of an episode.

    Attributes:
        status: a `Status`, or one of the game's `goals`.
        rewards: of each seat, normalised to [0, 1] by the game's own formula.
        score: what the players reached together, in the game's own unit.
        best: the best that there was to reach, in the same unit.
        decision: what was decided in the end, as JSON; None where nothing was.
    """

    status: str
    rewards: tuple[float, ...]
    score: float
    best: float
    decision: Any
    num_turns: int
    num_messages: int
    num_proposals: int
    num_illegal: int


State: TypeAlias = Any
"""One sampled problem, of a type of the game's own; nobody else looks into it."""


class Turn(Protocol):
    """What is read of a turn that was taken; `generate/records.py: TurnRecord` is one."""

    @property
    def seat(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def action(self) -> str: ...


@dataclass(frozen=True)
class Said:
    """A turn of which no more is known."""

    seat: int
    text: str
    action: str = MESSAGE


@dataclass(frozen=True)
class Asking:
    """How one player of an episode asked, and what the others answered. Counts; only legal messages are looked at."""

    messages: int = 0
    questions: int = 0
    """Messages that ask for something."""
    specific: int = 0
    """Messages that ask for a fact of the state; they are among the questions."""
    facts: int = 0
    """Different facts asked for."""
    repeated: int = 0
    """Specific questions that ask for nothing but facts asked for before."""
    learned: int = 0
    """Facts hidden from the player that it was told after having asked for them."""
    partner_messages: int = 0
    leaks: int = 0
    """The others' messages that told a fact nobody had asked for."""


@dataclass(frozen=True)
class KnownLine:
    """What others reached on states of their own.

    Attributes:
        reward: the mean over their episodes.
        low, high: its 95 % interval, over episodes.
        episodes: how many there are.
    """

    reward: float
    low: float
    high: float
    episodes: int


class Session(Protocol):
    """One episode of one state: who may act, what each player may see, how it ended.

    Attributes:
        seats: who may act now, in the order in which they do; empty once the episode is over. More than one act at
            once, in separate rooms: none of them hears the others before all have acted.
        status: how the episode ended, None while it goes on.
    """

    @property
    def seats(self) -> tuple[int, ...]: ...
    @property
    def status(self) -> str | None: ...
    def opening(self, seat: int) -> Opening: ...
    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a seat's turn; `check_may_act` is its first line.

        Args:
            text: what the seat said, with one action in it.
            cut: the text was cut by the token limit of a turn, so it is no action.

        Raises:
            RuntimeError: the seat may not act now, or the episode is over.
        """
        ...

    def abort(self, status: Status) -> None: ...
    def outcome(self) -> Outcome: ...


def check_may_act(session: Session, seat: int) -> None:
    """Whether a seat may act now.

    Raises:
        RuntimeError: it may not, or the episode is over.
    """
    if session.status is not None:
        raise RuntimeError(f"the episode has ended: {session.status}")
    if seat not in session.seats:
        raise RuntimeError(f"seat {seat} may not act now; it is the turn of {', '.join(map(str, session.seats))}")


class ScriptedPlayer(Protocol):
    """A player that needs no model: what it knows in, its turn's text out. One player may hold any seat.

    Args of `act`:
        view: what the game's `view` gives for its seat.
        rng: the seat's own random stream.
    """

    def act(self, view: Any, rng: np.random.Generator) -> str: ...


class Game(ABC):
    """The rules under one configuration, and all that other parts ask of a game.

    A game defines `name`, the four abstract methods, and whatever else it has; all other members have defaults. What
    only some games can do is in `abilities.py`. A state is of a type of the game's own: others see it as JSON.

    Attributes:
        name: that by which files and configurations name the game.
        settings: the class of its section of the configuration.
        config: the configuration.
        roles: what each seat is, such as `agent` and `user`; as many as there are seats, which are numbered from 0. All
            are "" where seats differ in nothing but their number.
        goals: how an episode ends that reached what the game is about.
        actions: what a legal turn can be.
        error_kinds: what can be wrong with an illegal turn, beside `CUT`.
        players: scripted players by name.
        figures: its own, in the order in which they are shown.
        lines: the names of those of `references` that are drawn beside rewards.
    """

    name: ClassVar[str]
    settings: ClassVar[type[GameSettings]] = GameSettings
    roles: tuple[str, ...] = ("", "")
    goals: frozenset[str] = frozenset({AGREED})
    actions: frozenset[str] = frozenset({MESSAGE})
    error_kinds: Sequence[str] = ()
    players: Mapping[str, ScriptedPlayer] = {}
    figures: Sequence[Figure] = ()
    lines: Sequence[str] = ()

    def __init__(self, config: Any = None) -> None:
        """Take a configuration of the game's own type; without one, its defaults."""
        self.config: Any = config or self.settings(name=self.name)

    @abstractmethod
    def sample_state(self, rng: np.random.Generator) -> State:
        """Draw a state.

        Raises:
            UserError: the configuration admits none.
        """

    @abstractmethod
    def start(self, state: State) -> Session:
        """Begin an episode."""

    @abstractmethod
    def state_to_json(self, state: State) -> dict[str, Any]:
        """Returns the state as JSON holds it."""

    @abstractmethod
    def state_from_json(self, data: Any) -> State:
        """Read what `state_to_json` wrote; all that a state can hold wrongly is noticed.

        Raises:
            UserError: it is no state; names the field.
        """

    @property
    def folder(self) -> Path:
        """The game's own folder, where its prompts, its silence lines and its data are."""
        return Path(getfile(type(self))).parent

    @property
    def data_source(self) -> str:
        """The name that verl has for the game's rows."""
        return f"{self.name}_selfplay"

    @property
    def shared_reward(self) -> bool:
        """Whether all seats of an episode have one reward, under this configuration."""
        return True

    @cached_property
    def silence(self) -> Silence | None:
        """The expected reward of the best play without messages, drawn beside rewards; None where it is not known."""
        return known_silence(self.config, self.folder)

    @property
    def about_lines(self) -> str:
        """What a reader must know about the reference lines and that of silence; "" if nothing."""
        return ""

    def describe(self) -> str:
        """The configuration in a few words, for `--dry-run`."""
        return self.name

    def best(self, state: State) -> float:
        """The best score that there is to reach, above 0."""
        return 1.0

    def check_fits(self, state: State) -> None:  # noqa: B027
        """Checks that a state could be one of this configuration.

        Raises:
            UserError: it could not.
        """

    def problem_of(self, data: dict[str, Any]) -> Any:
        """What makes two states, as `state_to_json` wrote them, the same problem; JSON."""
        return data

    def view(self, session: Any, seat: int) -> Any:
        """What one player knows in a running episode, as data for scripted players; by default its opening."""
        return session.opening(seat)

    def check_outcome(self, state: State, outcome: Any) -> None:  # noqa: B027
        """Checks that this can be the outcome of an episode of the state that did not end with a `Status`.

        Args:
            outcome: as `generate/records.py: OutcomeRecord` has it; `best` is the state's.

        Raises:
            ValueError: it cannot be; the message names the field.
        """

    def check_decision(self, state: State, decision: Any) -> None:  # noqa: B027
        """Checks that this can be the decision of a legal action in the state.

        Raises:
            ValueError: it cannot be.
        """

    def asking(self, state: State, turns: Sequence[Turn], seat: int) -> Asking:
        """How one seat asked, and what it was told; by default nothing is counted."""
        return Asking()

    def references(self, states: Sequence[State]) -> dict[str, list[float]]:
        """Rewards to compare with, by name, one for each state: means over all seats. `best` is drawn as optimum."""
        return {}

    def known_reward(self, state: State, data: dict[str, Any]) -> float | None:
        """The reward that a pair of people reached on the state, where its record `data` tells.

        Raises:
            UserError: what it tells is no reward.
        """
        return None

    def known_lines(self) -> dict[str, KnownLine]:
        """Rewards that others are known to have reached on states of this configuration, by name."""
        return {}

    def solution(self, state: State) -> Any:
        """A best decision, in words that people can check; JSON. None where the game knows none."""
        return None

    def draw_state(self, state: State) -> StateDrawing:
        """A state, for terminal and page; by default its JSON, which no player sees whole."""
        return StateDrawing(views=[], whole=[as_text("state", self.state_to_json(state))])

    def draw_episode(self, state: State, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        """What an episode made of its state; by default the decision as JSON.

        Args:
            turns: with the `proposal` of each.
            decision: what was agreed, None if nothing was.
        """
        return EpisodeDrawing(decision="" if decision is None else json.dumps(decision))


@dataclass
class Counts:
    """What a session counts as it goes."""

    turns: int = 0
    messages: int = 0
    proposals: int = 0
    illegal: int = 0
    errors_in_a_row: list[int] = field(default_factory=list)


TRAIN, HELD_OUT, MONITOR, SEATS, SILENCE, LISTENING = 0, 1, 3, 4, 5, 6
"""Seed spaces; none shares a random stream with another. Of states to train on, to evaluate on, and to compare the
iterations of a run on (so that the best of them can still be evaluated honestly); of partners' choices; of states for
the silence line; of messages that are altered. 2 was that of the shipped models' warm starts."""


def state_rng(seed: int, index: int, space: int = TRAIN) -> np.random.Generator:
    """The generator of state number `index`: the same on any machine, in any order of sampling."""
    return np.random.default_rng([space, seed, index])


def read_state(game: Game, text: str) -> State:
    """Load a state from JSON.

    Raises:
        UserError: it is not JSON, or no state.
    """
    try:
        return game.state_from_json(parse_json(text))
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"game state: unusable ({' '.join(str(error).split())})") from None
