"""Optional abilities of games.

Each ability is a protocol; a game has the ability if it defines the protocol's members. Code that needs an ability gets
it with `ability`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game, Said, Turn
from selfplay_pipeline.games.silence import LineName, Rewards


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
class Stage:
    """One stage of a warm start: a small model imitates episodes of scripted players.

    Attributes:
        players: Name of each seat's player in `Game.players`.
        episodes: Number of episodes, each on a state of its own.
        epochs: Number of epochs over the episodes.
        batch_size: Number of rows per optimizer step; a row is one seat's part of an episode.
        mute: Whether messages are muted, so that the model also meets prompts without words.
        seats: Seats whose turns are imitated; empty for all seats.
    """

    players: Sequence[str]
    episodes: int
    epochs: int
    batch_size: int = 64
    mute: bool = False
    seats: Sequence[int] = ()


@dataclass(frozen=True)
class Lesson:
    """Warm start: the episodes that a small model imitates before self-play.

    Attributes:
        folder: Folder of the shipped model that configurations name, such as `data/tiny_model`.
        words: Words with a token of their own, alone and after a space; all other text is encoded in bytes.
        stages: Stages of the warm start, in order.
    """

    folder: Path
    words: Sequence[str]
    stages: Sequence[Stage]


@runtime_checkable
class WordlessPlay(Protocol):
    """Ability to compute the rewards of strategies without words (see `games/silence.py`)."""

    def wordless_rewards(self, states: Sequence[Any], rng: np.random.Generator) -> Mapping[LineName, Rewards]:
        """Returns the expected rewards of each wordless play on each state, averaged over all seats; `silence` is
        always included.

        `pass` has one reward for each of `THRESHOLDS`. A play that the game cannot compute is left out.

        Raises:
            UserError: The game cannot compute any line under this configuration.
        """
        ...


@runtime_checkable
class ListeningTest(Protocol):
    """Ability to alter a message so that its receiver's best decision changes.

    Attributes:
        alterations: Names of the kinds of alteration.
    """

    @property
    def alterations(self) -> Sequence[str]: ...

    def alter(self, state: Any, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        """Returns a replacement for the last turn's message that should change its receiver's decision.

        Args:
            kind: One of `alterations`.

        Returns:
            None if no alteration of the message changes the decision.
        """
        ...


@runtime_checkable
class Redraw(Protocol):
    """Ability to resample everything in a state that is hidden from one of its seats."""

    def redraw(self, state: Any, seat: int, rng: np.random.Generator) -> Any:
        """Returns a state from the exact distribution of states given the view of one seat.

        The seat's own view stays; everything hidden from it is resampled from the rules.

        Raises:
            UserError: The game cannot draw it under this configuration.
        """
        ...


@runtime_checkable
class KeepNamed(Protocol):
    """Ability to rewrite a message: it names the same things, but tells the facts of another state about them."""

    def keep_named(self, state: Any, seat: int, text: str) -> str:
        """Returns a message that names the same things, but tells the facts of another state about them.

        Args:
            state: The other state, from `redraw` for the hearer.
            seat: Seat of the message's author.
            text: Text of the message.
        """
        ...


@runtime_checkable
class Renaming(Protocol):
    """Ability to exchange the names in a state: a symmetry of the game, under which nothing but the names changes.

    The renamed state is as likely as the state, equal decisions have equal rewards, and the same turns are legal.
    """

    def draw_names(self, state: Any, rng: np.random.Generator) -> dict[str, list[int]]:
        """Returns a renaming as JSON, drawn from all with equal probability."""
        ...

    def renamed(self, state: Any, names: Mapping[str, Sequence[int]]) -> Any:
        """Returns the state with other names.

        Raises:
            ValueError: The renaming is not one of this state's names.
        """
        ...

    def retold(self, state: Any, names: Mapping[str, Sequence[int]], text: str, *, back: bool = False) -> str:
        """Returns a legal turn about the state as a turn about the renamed state; with `back`, the other way round."""
        ...


@runtime_checkable
class TurnCredit(Protocol):
    """Ability to give each turn a credit of its own."""

    def credits(self, state: Any, turns: Sequence[Any], reward: float) -> list[float]:
        """Returns the credit of each turn: the final reward minus the best reward still reachable before the turn.

        Args:
            turns: Turns of the episode, each with its `proposal`.
            reward: Reward of the whole episode, which all seats share.
        """
        ...


@runtime_checkable
class Lessons(Protocol):
    """Ability to warm-start a small model by imitation of scripted players.

    Attributes:
        lessons: Warm starts by name.
    """

    @property
    def lessons(self) -> Mapping[str, Lesson]: ...


@runtime_checkable
class HumanEpisodes(Protocol):
    """Ability to provide human episodes, which come with the game.

    Attributes:
        about_humans: Text about the players, and about the way in which their episodes are counted.
    """

    @property
    def about_humans(self) -> str: ...

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Yields the episodes of people on states of this configuration; none if there are none or their file is
        missing."""
        ...


IN_WORDS: Mapping[type, str] = {
    Redraw: "states drawn anew", KeepNamed: "messages that keep what they name",
    Renaming: "names to exchange",
    WordlessPlay: "silence line", ListeningTest: "listening test", TurnCredit: "credit of single turns",
    Lessons: "lesson for a small model", HumanEpisodes: "episodes of people",
}  # fmt: skip
A = TypeVar("A")


def ability(game: Game, kind: type[A], asked_by: str, remedy: str = "choose another game with --config") -> A:
    """Returns the game, typed as one that has the ability.

    Args:
        asked_by: Command or key that needs the ability.

    Raises:
        UserError: The game lacks the ability.
    """
    if not isinstance(game, kind):
        raise UserError(f"{asked_by}: the game {game.name} has no {IN_WORDS[kind]}; {remedy}")
    return game
