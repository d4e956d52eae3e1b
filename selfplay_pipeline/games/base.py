"""Base types of every game: `Game`, `Session`, and the data that they exchange.

A game implements `Game` and `Session`; `registry.py` finds it by name. No other part of the package knows a game's
vocabulary. Other parts use a game only through these classes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from inspect import getfile
from pathlib import Path
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Section
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.games.drawing import EpisodeDrawing, StateDrawing, Table, as_text
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.silence import SILENCE as SILENCE_LINE
from selfplay_pipeline.games.silence import Line, LineName, Lines, Rewards, stored_lines


class Status(StrEnum):
    """Status of an episode that ended without reaching the game's goal; its rewards are all 0.

    An episode that reached the goal has one of the game's `goals` as its status.
    """

    TURN_LIMIT = "turn_limit"
    """The episode reached the game's limit of turns; legal and illegal turns count."""
    ERROR_LIMIT = "error_limit"
    """One player took too many illegal actions in a row."""
    CONTEXT_LENGTH = "context_length"
    """The next turn might have exceeded the model's context length; nothing was truncated."""
    ENGINE_FAILURE = "engine_failure"
    """The engine returned no completion after all retries. Such an episode gives no training rows."""
    ABANDONED = "abandoned"
    """A person left the episode before its end."""


AGREED = "agreed"
"""Status of an episode that reached the goal, in games with one goal."""
MESSAGE = "message"
"""Action that sends text to the other players; the name is the same in all games."""
MUTED = f"[{MESSAGE}]"
"""Text that a message's reader receives if messages are muted."""
INVALID = "invalid"
"""Action of a turn whose text is not a legal action; the error observation gives the reason."""
SAME_SCORE = 1e-6
"""Scores and rewards that differ by less than this count as equal."""
CUT = "cut"
"""Error kind of a turn that the token limit cut off."""


class ParseError(Exception):
    """Raised for a text that is not a legal action.

    Attributes:
        kind: Kind of the error, `CUT` or one of the game's `error_kinds`.
        told: If the author loses the turn instead of taking it again: new text for the seats that act next, by seat.
    """

    def __init__(self, kind: str, message: str, told: Mapping[int, str] | None = None) -> None:
        """Store kind and texts; the message is shown to the author of the text."""
        super().__init__(message)
        self.kind, self.told = kind, told


class GameSettings(Section):
    """Configuration fields that all games share."""

    model_config = ConfigDict(frozen=True)

    name: str
    """Name of the game."""
    path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """File of a game of your own, whose code is run; None for a game of an installed package."""
    max_length: Annotated[int, Field(ge=1)] = 20
    """Maximum number of turns in an episode, counting all players and illegal turns.

    If the goal is not reached by then, all rewards are 0.
    """
    mute: bool = False
    """Remove the text of each message, so that the partner receives a bare `[message]`.

    The drop in reward shows how much a policy depends on messages. Proposals and answers carry no free text in any
    case.
    """
    prompts: str = "default"
    """Name of a built-in set of prompts (default, compact), or a folder with the same template files."""

    def code(self) -> dict[str, str]:
        """Returns your own files that decide how the game is played, by configuration key.

        A run stores their content hashes, and is not continued with other contents.
        """
        return {"path": self.path} if self.path else {}

    def as_stored(self) -> Self:
        """Returns these rules as rules that a stored file holds: the code that they name is not run."""
        return self


@dataclass(frozen=True)
class Step:
    """Result of one turn.

    Attributes:
        action: One of the game's `actions`, or `INVALID`.
        observations: New text for each seat; "" for a seat that sees nothing new.
        decision: Proposal or decision of a legal action, as JSON; None if the action has none.
        error: Reason why the action is illegal; None if it is legal. After an illegal action, the seat must try again.
        error_kind: Kind of the error, for counting; None if the action is legal.
    """

    action: str
    observations: tuple[str, ...]
    decision: Any = None
    error: str | None = None
    error_kind: str | None = None


@dataclass(frozen=True)
class Opening:
    """Prompt of one player before the first turn: the rules, then the player's private view."""

    system: str
    observation: str


@dataclass(frozen=True)
class Part:
    """Part of a turn that a person selects, such as one item of a proposal.

    Attributes:
        options: Values of the part, as they are shown.
        table: Title of the table of `Game.draw_view` whose rows are the options; "" if there is none.
        chosen: Number of the option that is selected at first; None for none.
    """

    label: str
    options: tuple[str, ...]
    table: str = ""
    chosen: int | None = None


@dataclass(frozen=True)
class Choice:
    """Action that a seat may take now, for the help of a person.

    Attributes:
        action: One of the game's `actions`.
        form: Text of such a turn, which a person edits: the beginning of a message, or a legal proposal.
        parts: Parts to select in place of the form; empty if the turn can only be written.
        write: Returns the text of the turn, given the number of the selected option of each part; of a message, the
            beginning, which the words follow.
    """

    action: str
    form: str = ""
    parts: Sequence[Part] = ()
    write: Callable[[Sequence[int]], str] = field(default=lambda selected: "", repr=False, compare=False)


@dataclass(frozen=True)
class Outcome:
    """Result of an ended episode.

    Attributes:
        status: A `Status`, or one of the game's `goals`.
        rewards: Reward of each seat, normalised to [0, 1] by the game's formula.
        score: Score that the players reached together, in the game's unit.
        best: Best possible score of the state, in the same unit.
        decision: Final decision, as JSON; None if there is none.
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
"""One sampled problem, of a type that the game chooses; other parts pass it on without reading it."""


class Turn(Protocol):
    """The part of a played turn that games read; `generate/records.py: TurnRecord` implements it."""

    @property
    def seat(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def action(self) -> str: ...


@dataclass(frozen=True)
class Said:
    """Turn with only a seat, a text and an action; see `Turn`."""

    seat: int
    text: str
    action: str = MESSAGE


@dataclass(frozen=True)
class Asking:
    """Counts of one player's questions in an episode and of the others' answers. Only legal messages are counted."""

    messages: int = 0
    questions: int = 0
    """Number of messages that ask for something."""
    specific: int = 0
    """Number of questions that ask for a fact of the state."""
    facts: int = 0
    """Number of distinct facts that the player asked for."""
    repeated: int = 0
    """Number of specific questions that ask only for facts that the player had asked for before."""
    learned: int = 0
    """Number of facts, hidden from the player, that others told after the player had asked for them."""
    partner_messages: int = 0
    leaks: int = 0
    """Number of other players' messages that tell a fact for which this player had not asked."""


@dataclass(frozen=True)
class KnownLine:
    """Reference reward of other players, such as people, from episodes on their own states.

    Attributes:
        reward: Mean reward over the episodes.
        low, high: Bounds of the 95 % confidence interval over the episodes.
        episodes: Number of episodes.
    """

    reward: float
    low: float
    high: float
    episodes: int


@dataclass(frozen=True)
class HumanEpisode:
    """Recorded episode between people.

    Attributes:
        turns: Messages of the episode.
        num_turns: Number of recorded actions of all kinds.
        legal: Actions that the game's rules allow, from first to last, each as the text of a turn.
        left_out: Number of other actions, by the reason for leaving them out.
    """

    state: Any
    turns: Sequence[Said]
    reward: float
    num_turns: int
    legal: Sequence[Said] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Altered:
    """Message that replaces an original one.

    Attributes:
        decision: Best decision for a player that plans with the altered message, as JSON. With the original message,
            another decision is clearly better.
    """

    text: str
    decision: Any


@dataclass(frozen=True)
class Play:
    """Episodes of scripted players that a model imitates.

    Attributes:
        players: Name of each seat's player in `Game.players`.
        episodes: Number of episodes, each on a state of its own.
        seats: Seats whose turns are imitated; empty for all seats.
        first_tokens: Number of tokens at the beginning of each turn that are imitated, which teach the kind of action
            but not its content; 0 for whole turns.
        mute: Whether messages are muted, so that the model also meets prompts without words.
    """

    players: Sequence[str]
    episodes: int
    seats: tuple[int, ...] = ()
    first_tokens: int = 0
    mute: bool = False


@dataclass(frozen=True)
class Stage:
    """One stage of a warm start: a model imitates episodes of scripted players, in random order.

    Attributes:
        plays: Episodes to imitate.
        epochs: Number of epochs over the episodes.
        batch_size: Number of rows per optimizer step; a row is one seat's part of an episode.
        learning_rate: AdamW's peak learning rate.
    """

    plays: Sequence[Play]
    epochs: int
    batch_size: int = 64
    learning_rate: float = 2e-3


@dataclass(frozen=True)
class Lesson:
    """Warm start: the episodes that a model imitates before self-play.

    Attributes:
        folder: Folder of the model that configurations name, such as `data/tiny_model`.
        words: Words of the tiny model with a token of their own, alone and after a space; all other text is encoded in
            bytes. None if SmolLM2 is taught, which has a tokenizer and weights already.
        stages: Stages of the warm start, in order.
    """

    folder: Path
    words: Sequence[str] | None
    stages: Sequence[Stage]


class Session(Protocol):
    """One episode of one state: the order of turns, each player's observations, the outcome.

    Attributes:
        seats: Seats that may act now, in the order in which they act; empty once the episode is over. Several seats act
            simultaneously: none of them receives the others' turns before all have acted.
        status: Final status of the episode; None while the episode runs.
    """

    @property
    def seats(self) -> tuple[int, ...]: ...
    @property
    def status(self) -> str | None: ...
    def opening(self, seat: int) -> Opening: ...
    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a seat's turn and return its result. An implementation calls `check_may_act` in its first line.

        Args:
            text: Text of the turn, with one action in it.
            cut: True if the token limit cut off the text, which then counts as illegal.

        Raises:
            RuntimeError: The seat may not act now, or the episode is over.
        """
        ...

    def abort(self, status: Status) -> None: ...
    def outcome(self) -> Outcome: ...


def check_may_act(session: Session, seat: int) -> None:
    """Raises RuntimeError unless the episode is running and the seat may act now."""
    if session.status is not None:
        raise RuntimeError(f"the episode has ended: {session.status}")
    if seat not in session.seats:
        raise RuntimeError(f"seat {seat} may not act now; it is the turn of {', '.join(map(str, session.seats))}")


class ScriptedPlayer(Protocol):
    """Player without a model: it turns a view into the text of a turn. One player may hold any seat.

    Args of `act`:
        view: Result of the game's `view` for the player's seat.
        rng: Random generator of the seat.
    """

    def act(self, view: Any, rng: np.random.Generator) -> str: ...


class Game(ABC):
    """Rules of a game under one configuration, and everything else that the package needs from the game.

    A game must define `name`, `state`, `sample_state`, `start` and `rewards`; all other members have defaults. What
    only some games can do is among them: its default does nothing or raises NotImplementedError, and `has` says whether
    a game defines it. Other parts see states as JSON.

    Attributes:
        name: Name of the game in files and configurations.
        state: Pydantic class of the states. A game with states of another kind defines `state_to_json` and
            `state_from_json` instead.
        settings: Class of the configuration section `game`.
        variant: Key of the section `game` that `--game NAME:VALUE` sets, such as the environment of an adapter; "" if
            the option takes no value.
        config: Configuration of this instance.
        roles: Role of each seat, such as `agent` and `user`. Seats are numbered from 0, and there is one role for each.
            All roles are "" if the seats differ only in their number.
        goals: Statuses of episodes that reached the goal.
        actions: Names of the legal actions.
        error_kinds: Kinds of illegal actions; `CUT` is always added.
        disclosing: Actions after which the rules tell a seat something that no opening shows, or that only another
            seat's does, such as its points for a proposal. `game check` compares no observation of such a turn.
        players: Scripted players by name.
        figures: The game's own figures, in display order.
        lines: Names of the references (`Game.references`) that reward charts show.
        reads_facts: Whether `asking` also reads which facts messages ask for and tell.
        alterations: Names of the kinds of alteration of `alter`.
        about_humans: Text about the players of `human_episodes`, and about the way in which their episodes are counted.
        chance_later: Whether states decide what is drawn at random after the openings. Then two states with the same
            opening of a seat may show it different things later, and `game check` cannot tell this from a leak.
    """

    name: ClassVar[str]
    state: ClassVar[type[BaseModel]]
    settings: ClassVar[type[GameSettings]] = GameSettings
    variant: ClassVar[str] = ""
    roles: tuple[str, ...] = ("", "")
    goals: frozenset[str] = frozenset({AGREED})
    actions: frozenset[str] = frozenset({MESSAGE})
    error_kinds: Sequence[str] = ()
    disclosing: frozenset[str] = frozenset()
    players: Mapping[str, ScriptedPlayer] = {}
    figures: Sequence[Figure] = ()
    lines: Sequence[str] = ()
    chance_later: bool = False
    reads_facts: bool = True
    alterations: Sequence[str] = ()
    about_humans: str = ""

    def __init__(self, config: Any = None) -> None:
        """Store a configuration of the class `settings`; by default one with default values."""
        self.config: Any = config or self.settings(name=self.name)

    def has(self, member: str) -> bool:
        """Whether the game defines a member that has a default."""
        return getattr(type(self), member) is not getattr(Game, member)

    def need(self, member: str, asked_by: str, remedy: str = "choose another game with --config") -> None:
        """Raises UserError unless the game defines a member of `IN_WORDS`.

        Args:
            member: Name of the member.
            asked_by: Command or key that needs it.
            remedy: What the user can do otherwise.
        """
        if not self.has(member):
            raise UserError(f"{asked_by}: the game {self.name} has no {IN_WORDS[member]}; {remedy}")

    @abstractmethod
    def sample_state(self, rng: np.random.Generator) -> State:
        """Returns a randomly drawn state.

        Raises:
            UserError: The configuration admits no state.
        """

    @abstractmethod
    def start(self, state: State) -> Session:
        """Returns the session of a new episode on a state."""

    @abstractmethod
    def rewards(self, state: State, decision: Any) -> tuple[float, ...]:
        """Returns the reward of each seat for the final decision of an episode that reached its goal, from 0 to 1.

        This is the one place of the formula: sessions reward with it, and stored episodes are checked with it. They are
        checked under the game's default configuration; a game whose rewards depend on the configuration defines
        `check_rewards` too.

        Args:
            decision: The decision as JSON, which may come from a file of unknown origin.

        Raises:
            ValueError: The decision is not possible in the state.
        """

    def score(self, state: State, decision: Any) -> float:
        """Returns the score that a final decision reaches, in the unit of `best`; by default the mean reward times
        `best`."""
        rewards = self.rewards(state, decision)
        return sum(rewards) / len(rewards) * self.best(state)

    def state_to_json(self, state: State) -> dict[str, Any]:
        """Returns the state as JSON data; by default the fields of the model `state`."""
        found: dict[str, Any] = state.model_dump(mode="json")
        return found

    def state_from_json(self, data: Any) -> State:
        """Returns the state that `state_to_json` wrote; further fields are ignored.

        An implementation checks everything that can be wrong in a state.

        Raises:
            UserError: The data is not a state; the message names the field.
        """
        try:
            return self.state.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            what, field = str(first["msg"]).removeprefix("Value error, "), ".".join(map(str, first["loc"]))
            raise UserError(f"game state: field '{field}': {what}" if field else f"game state: {what}") from None

    def of_state(self, data: Any) -> Game:
        """Returns the game under which a stored state is read; by default this one.

        Stored files are read under the default configuration. A game whose number of seats depends on the configuration
        stores this number in the state, and returns a game with it here.

        Args:
            data: A state, as `state_to_json` wrote it.
        """
        return self

    @property
    def folder(self) -> Path:
        """Folder of the game's module, with its prompts, silence lines and data."""
        return Path(getfile(type(self))).parent

    @property
    def data_source(self) -> str:
        """Value of verl's column `data_source` in the game's rows."""
        return f"{self.name}_selfplay"

    @property
    def shared_reward(self) -> bool:
        """Whether all seats of an episode receive the same reward under this configuration."""
        return True

    @property
    def silence_is_bound(self) -> bool:
        """Whether no play without the content of messages can exceed the silence line under this configuration."""
        return False

    @cached_property
    def wordless(self) -> Lines:
        """Known expected rewards of strategies without words that this configuration allows, by name."""
        lines = stored_lines(self.config, self.config.code(), self.folder)
        return {name: line for name, line in lines.items() if name == SILENCE_LINE or not self.silence_is_bound}

    @property
    def silence(self) -> Line | None:
        """Expected reward of one proposal of a fixed proposer who hears nothing; None if unknown."""
        return self.wordless.get(SILENCE_LINE)

    @property
    def about_lines(self) -> str:
        """Explanation of the reference lines and the silence line for readers; "" without such lines."""
        return ""

    def describe(self) -> str:
        """Returns a short description of the configuration, for `--dry-run`."""
        return self.name

    def best(self, state: State) -> float:
        """Returns the best possible score, which is above 0."""
        return 1.0

    def check_fits(self, state: State) -> None:  # noqa: B027
        """Raises UserError unless this configuration could have drawn the state."""

    def problem_of(self, data: dict[str, Any]) -> Any:
        """Returns the part of a state that defines its problem, as JSON data.

        States with equal parts pose the same problem.

        Args:
            data: A state, as `state_to_json` wrote it.
        """
        return data

    def view(self, session: Any, seat: int) -> Any:
        """Returns one player's knowledge in a running episode, for scripted players.

        By default it is `TurnSession.known`, and the player's opening in a session of another kind.
        """
        return session.known(seat) if hasattr(session, "known") else session.opening(seat)

    def choices(self, session: Any, seat: int) -> Sequence[Choice]:
        """Returns the actions that a seat may take now; by default all actions of the game, without a form."""
        return [Choice(action) for action in sorted(self.actions)]

    def draw_view(self, state: State, seat: int) -> Sequence[Table]:
        """Returns tables of what a seat sees at the beginning, made of its own view alone; by default none.

        Without tables, a person reads the opening.
        """
        return []

    def check_outcome(self, state: State, outcome: Any) -> None:
        """Checks that an outcome is possible for an episode of the state that reached its goal.

        Args:
            outcome: An `OutcomeRecord` of `generate/records.py`; its `best` is the best score of the state.

        Raises:
            ValueError: No episode of the state can have this outcome; the message names the field.
        """
        try:
            self.check_decision(state, outcome.proposal)
            score = self.score(state, outcome.proposal)
        except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
            raise ValueError(f"field 'outcome.proposal': {error}") from None
        if abs(outcome.score - score) > SAME_SCORE:
            raise ValueError(f"field 'outcome.score': {outcome.score:g}, but the proposal scores {score}")
        found = outcome.rewards or [outcome.normalized_reward] * len(self.roles)
        try:
            self.check_rewards(state, outcome.proposal, found)
        except ValueError as error:
            field = "rewards" if outcome.rewards else "normalized_reward"
            raise ValueError(f"field 'outcome.{field}': {error}") from None

    def check_rewards(self, state: State, decision: Any, found: Sequence[float]) -> None:
        """Raises ValueError unless a decision gives these rewards, one for each seat."""
        rewards = self.rewards(state, decision)
        if any(abs(one - other) > SAME_SCORE for one, other in zip(found, rewards, strict=True)):
            shown = [float(f"{reward:g}") for reward in dict.fromkeys(rewards)]
            raise ValueError(f"{[*dict.fromkeys(found)]}, but the proposal gives {shown}")

    def check_decision(self, state: State, decision: Any) -> None:  # noqa: B027
        """Raises ValueError unless a legal action in the state can have this decision."""

    def asking(self, state: State, turns: Sequence[Turn], seat: int) -> Asking:
        """Returns counts of one seat's questions and of the answers to them; by default nothing is counted.

        Figures of questions are measured only in games that define it.
        """
        return Asking()

    def references(self, states: Sequence[State]) -> dict[str, list[float]]:
        """Returns reference rewards by name, one per state, averaged over all seats.

        Charts show `best` as the optimum.
        """
        return {}

    def known_reward(self, state: State, data: dict[str, Any]) -> float | None:
        """Returns the reward that a pair of people reached on the state; None if the state's record does not have it.

        Args:
            data: Record of the state.

        Raises:
            UserError: The recorded value is not a reward.
        """
        return None

    def known_lines(self) -> dict[str, KnownLine]:
        """Returns reference rewards of other players on states of this configuration, by name."""
        return {}

    def solution(self, state: State) -> Any:
        """Returns a best decision as JSON that people can read; None if the game knows none."""
        return None

    def draw_state(self, state: State) -> StateDrawing:
        """Returns the tables of a state for the terminal and the page; by default its JSON, which no player sees
        whole."""
        return StateDrawing(views=[], whole=[as_text("state", self.state_to_json(state))])

    def draw_episode(self, state: State, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
        """Returns the tables of an episode for the terminal and the page; by default the decision as JSON.

        Args:
            turns: Turns of the episode, each with its `proposal`.
            decision: Agreed decision; None if the players agreed on none.
        """
        return EpisodeDrawing(decision="" if decision is None else json.dumps(decision))

    def wordless_rewards(self, states: Sequence[State], rng: np.random.Generator) -> Mapping[LineName, Rewards]:
        """Returns the expected rewards of each wordless play on each state, averaged over all seats (see `silence.py`);
        `silence` is always included.

        `pass` has one reward for each of `THRESHOLDS`. A play that the game cannot compute is left out.

        Raises:
            UserError: The game cannot compute any line under this configuration.
        """
        raise NotImplementedError

    def alter(self, state: State, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        """Returns a replacement for the last turn's message that should change its receiver's decision.

        Args:
            kind: One of `alterations`.

        Returns:
            None if no alteration of the message changes the decision.
        """
        raise NotImplementedError

    def redraw(self, state: State, seat: int, rng: np.random.Generator) -> State:
        """Returns a state from the exact distribution of states given the view of one seat.

        The seat's own view stays; everything hidden from it is resampled from the rules.

        Raises:
            UserError: The game cannot draw it under this configuration.
        """
        raise NotImplementedError

    def keep_named(self, state: State, seat: int, text: str) -> str:
        """Returns a message that names the same things, but tells the facts of another state about them.

        Args:
            state: The other state, from `redraw` for the hearer.
            seat: Seat of the message's author.
            text: Text of the message.
        """
        raise NotImplementedError

    def draw_names(self, state: State, rng: np.random.Generator) -> dict[str, list[int]]:
        """Returns a renaming as JSON, drawn from all with equal probability; see `renamed`."""
        raise NotImplementedError

    def renamed(self, state: State, names: Mapping[str, Sequence[int]]) -> State:
        """Returns the state with other names.

        A renaming is a symmetry of the game: the renamed state is as likely as the state, equal decisions have equal
        rewards, and the same turns are legal. A game that defines this defines `draw_names` and `retold` too.

        Raises:
            ValueError: The renaming is not one of this state's names.
        """
        raise NotImplementedError

    def retold(self, state: State, names: Mapping[str, Sequence[int]], text: str, *, back: bool = False) -> str:
        """Returns a legal turn about the state as a turn about the renamed state; with `back`, the other way round."""
        raise NotImplementedError

    @property
    def lessons(self) -> Mapping[str, Lesson]:
        """Warm starts of small models, by name."""
        return {}

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Yields the episodes of people on states of this configuration; none if there are none or their file is
        missing."""
        return iter(())


IN_WORDS: Mapping[str, str] = {
    "redraw": "states drawn anew", "keep_named": "messages that keep what they name",
    "renamed": "names to exchange",
    "wordless_rewards": "silence line", "alter": "listening test",
    "lessons": "lesson for a small model", "human_episodes": "episodes of people",
}  # fmt: skip
"""Thing that a game without the member lacks, in words for a message, by the member's name."""

TRAIN, HELD_OUT, MONITOR, SEATS, SILENCE, LISTENING, SWAPPED, STUDY, NAMES = 0, 1, 3, 4, 5, 6, 7, 8, 9
"""Seed spaces, one for each use of random numbers; no two share a random stream.

TRAIN draws the states for training, HELD_OUT those for evaluation. MONITOR draws the states on which the iterations of
a run are compared, so that the best iteration can still be evaluated on held-out states. SEATS is for the choices of
partners, SILENCE for the states of the silence line, LISTENING for altered messages, SWAPPED for the states of swapped
messages, STUDY for the order of a study with people, NAMES for the names of other-play. The number 2 was used for the
warm starts of the shipped models.
"""


def state_rng(seed: int, index: int, space: int = TRAIN) -> np.random.Generator:
    """Returns the random generator of state number `index`: the same on any machine, in any order of sampling."""
    return np.random.default_rng([space, seed, index])


def read_state(game: Game, text: str) -> State:
    """Returns a state from JSON text.

    Raises:
        UserError: The text is not JSON, or the JSON is not a state.
    """
    try:
        return game.state_from_json(parse_json(text))
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"game state: unusable ({' '.join(str(error).split())})") from None
