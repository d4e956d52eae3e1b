"""What only some games can do. A game has an ability if it has its members; whoever needs one asks with `ability`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Game, Said, Turn


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


@runtime_checkable
class SilenceLine(Protocol):
    """The game can compute what play without messages reaches."""

    def silent_rewards(self, states: Sequence[Any], rng: np.random.Generator) -> Sequence[float]:
        """What the best play without messages can expect on each state, mean over all seats, from views and rules.

        Raises:
            UserError: the game cannot tell under this configuration.
        """
        ...


@runtime_checkable
class ListeningTest(Protocol):
    """The game can alter a message so that its hearer should decide otherwise.

    Attributes:
        alterations: the ways in which a message can be altered.
    """

    @property
    def alterations(self) -> Sequence[str]: ...

    def alter(self, state: Any, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        """A message in place of the last turn after which its hearer should decide otherwise than before.

        Args:
            kind: one of `alterations`.

        Returns:
            None where the message says nothing that could be altered to that end.
        """
        ...


@runtime_checkable
class TurnCredit(Protocol):
    """The game knows what could be reached before each turn."""

    def credits(self, state: Any, turns: Sequence[Any], reward: float) -> list[float]:
        """For each turn the reward minus what could be reached before it.

        Args:
            turns: with the `proposal` of each.
            reward: of the whole episode, which all seats share.
        """
        ...


@runtime_checkable
class Lessons(Protocol):
    """A small model can be taught the game.

    Attributes:
        lessons: what it can be taught, by name.
    """

    @property
    def lessons(self) -> Mapping[str, Lesson]: ...


@runtime_checkable
class HumanEpisodes(Protocol):
    """Episodes of people come with the game.

    Attributes:
        about_humans: who played them, and how they are counted.
    """

    @property
    def about_humans(self) -> str: ...

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Episodes of people on states of this configuration; none where there are none, or their file is not at
        hand."""
        ...


IN_WORDS: Mapping[type, str] = {
    SilenceLine: "silence line", ListeningTest: "listening test", TurnCredit: "credit of single turns",
    Lessons: "lesson for a small model", HumanEpisodes: "episodes of people",
}  # fmt: skip
A = TypeVar("A")


def ability(game: Game, kind: type[A], asked_by: str, remedy: str = "choose another game with --config") -> A:
    """Returns the game as one that has an ability.

    Args:
        asked_by: the command or key that needs it.

    Raises:
        UserError: the game lacks it.
    """
    if not isinstance(game, kind):
        raise UserError(f"{asked_by}: the game {game.name} has no {IN_WORDS[kind]}; {remedy}")
    return game
