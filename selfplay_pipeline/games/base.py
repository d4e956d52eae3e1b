"""What every game is made of.

A game is one folder that implements `Game` and `Session`; `registry.py` names it. Outside its folder nobody knows its
words: what other parts want to know of a game, they ask through these protocols.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import ConfigDict

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.silence import Silence


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
    """The configuration of a game, as far as every game has the same; `name` is a `Literal` of the game's own."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Which game this is."""
    max_length: int
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
class HumanEpisode:
    """An episode of people, as far as it was recorded.

    Attributes:
        turns: the messages.
        num_turns: of all kinds.
        legal: all actions that the game's rules allow, as the text of turns from the first to the last.
        left_out: how many other actions there were, by the reason.
    """

    state: Any
    turns: Sequence[Said]
    reward: float
    num_turns: int
    legal: Sequence[Said] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Altered:
    """A message in place of one that was said.

    Attributes:
        decision: what a player decides that plans with it, as JSON; with the message that was said another decision is
            clearly the better one.
    """

    text: str
    decision: Any


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


class State(Protocol):
    """One sampled problem. `to_dict` is JSON; the game's `load_state` reads it back."""

    @property
    def best(self) -> float:
        """The best score that there is to reach."""
        ...

    def to_dict(self) -> dict[str, Any]: ...


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


@dataclass(frozen=True)
class Stage:
    """Episodes of scripted players, which a small model imitates.

    Attributes:
        players: who holds each seat: names in `Game.players`.
        episodes: how many are played, each on a state of its own.
        epochs: how often each of them is imitated.
    """

    players: Sequence[str]
    episodes: int
    epochs: int


@dataclass(frozen=True)
class Lesson:
    """What a small model imitates before it plays itself.

    Attributes:
        folder: what configurations call the model that is shipped, such as `data/tiny_model`.
        words: what gets a token of its own, alone and behind a space; all else is spelled in bytes.
        stages: what it imitates, one after the other.
        seats: whose turns are imitated; by default those of all.
    """

    folder: Path
    words: Sequence[str]
    stages: Sequence[Stage]
    seats: Sequence[int] = ()


class Game(Protocol):
    """The rules under one configuration, and all that other parts ask of a game.

    Attributes:
        name: that of its folder, as in `registry.py` and in files.
        data_source: what verl calls its rows.
        config: the configuration.
        roles: what each seat is, such as `agent` and `user`; as many as there are seats, which are numbered from 0. All
            are "" where seats differ in nothing but their number.
        shared_reward: whether all seats of an episode have one reward, under this configuration.
        goals: how an episode ends that reached what the game is about.
        actions: what a legal turn can be.
        error_kinds: what can be wrong with an illegal turn, beside `CUT`.
        players: scripted players by name.
        lessons: what a small model can be taught of it, by name.
        figures: its own, in the order in which they are shown.
        lines: the names of those of `references` that are drawn beside rewards.
        silence: the expected reward of the best play without messages, which is drawn there too; None where it is not
            known (`silence.known_silence`).
        about_lines: what a reader must know about these lines; "" if nothing.
        about_humans: what `human_episodes` are.
        alterations: how `alter` can alter a message; none where the game has no listening test.
    """

    def __init__(self, config: Any = None) -> None:
        """Take a configuration of the game's own type; without one, its defaults."""
        ...

    @property
    def name(self) -> str: ...
    @property
    def data_source(self) -> str: ...
    @property
    def config(self) -> GameSettings: ...
    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def shared_reward(self) -> bool: ...
    @property
    def goals(self) -> frozenset[str]: ...
    @property
    def actions(self) -> frozenset[str]: ...
    @property
    def error_kinds(self) -> Sequence[str]: ...
    @property
    def players(self) -> Mapping[str, ScriptedPlayer]: ...
    @property
    def lessons(self) -> Mapping[str, Lesson]: ...
    @property
    def figures(self) -> Sequence[Figure]: ...
    @property
    def lines(self) -> Sequence[str]: ...
    @property
    def silence(self) -> Silence | None: ...
    @property
    def about_lines(self) -> str: ...
    @property
    def about_humans(self) -> str: ...
    @property
    def alterations(self) -> Sequence[str]: ...

    def describe(self) -> str:
        """The configuration in a few words, for `--dry-run`."""
        ...

    def sample_state(self, rng: np.random.Generator) -> State:
        """Draw a state.

        Raises:
            UserError: the configuration admits none.
        """
        ...

    def load_state(self, data: Any) -> State:
        """Read what `to_dict` wrote; all that a state can hold wrongly is noticed.

        Raises:
            UserError: it is no state; names the field.
        """
        ...

    def check_fits(self, state: Any) -> None:
        """Whether a state could be one of this configuration.

        Raises:
            UserError: it could not.
        """
        ...

    def problem_of(self, data: dict[str, Any]) -> Any:
        """What makes two states, as `to_dict` wrote them, the same problem; JSON."""
        ...

    def start(self, state: Any) -> Session:
        """Begin an episode."""
        ...

    def view(self, session: Any, seat: int) -> Any:
        """What one player knows in a running episode, as data for scripted players."""
        ...

    def check_outcome(self, state: Any, outcome: Any) -> None:
        """Whether this can be the outcome of an episode of the state that did not end with a `Status`.

        Args:
            outcome: as `generate/records.py: OutcomeRecord` has it; `best` is the state's.

        Raises:
            ValueError: it cannot be; the message names the field.
        """
        ...

    def check_decision(self, state: Any, decision: Any) -> None:
        """Whether this can be the decision of a legal action in the state.

        Raises:
            ValueError: it cannot be.
        """
        ...

    def asking(self, state: Any, turns: Sequence[Turn], seat: int) -> Asking:
        """How one seat asked, and what it was told."""
        ...

    def alter(self, state: Any, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        """A message in place of the last turn after which its hearer should decide otherwise than before.

        Args:
            kind: one of `alterations`.

        Returns:
            None where the message says nothing that could be altered to that end.
        """
        ...

    def credits(self, state: Any, turns: Sequence[Any], reward: float) -> list[float] | None:
        """For each turn the reward minus what could be reached before it.

        Args:
            turns: with the `proposal` of each.
            reward: of the whole episode, which all seats share.

        Returns:
            None where the game does not know what can be reached.
        """
        ...

    def references(self, states: Sequence[Any]) -> dict[str, list[float]]:
        """Rewards to compare with, by name, one for each state: means over all seats. `best` is drawn as optimum."""
        ...

    def silent_rewards(self, states: Sequence[Any], rng: np.random.Generator) -> Sequence[float]:
        """What the best play without messages can expect on each state, mean over all seats, from views and rules.

        Raises:
            UserError: the game cannot tell under this configuration.
        """
        ...

    def known_reward(self, state: Any, data: dict[str, Any]) -> float | None:
        """The reward that a pair of people reached on the state, where its record `data` tells.

        Raises:
            UserError: what it tells is no reward.
        """
        ...

    def known_lines(self) -> dict[str, KnownLine]:
        """Rewards that others are known to have reached on states of this configuration, by name."""
        ...

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Episodes of people on states of this configuration; none where there are none, or their file is not at
        hand."""
        ...

    def solution(self, state: Any) -> Any:
        """A best decision, in words that people can check; JSON."""
        ...

    def draw_state(self, state: Any) -> StateDrawing:
        """A state, for terminal and page."""
        ...

    def draw_episode(self, state: Any, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        """What an episode made of its state.

        Args:
            turns: with the `proposal` of each.
            decision: what was agreed, None if nothing was.
        """
        ...


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
        return game.load_state(parse_json(text))
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"game state: unusable ({' '.join(str(error).split())})") from None
