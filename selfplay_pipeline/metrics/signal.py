"""The rows that GRPO compares with each other, and the groups that it can learn from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from selfplay_pipeline.games.base import SAME_SCORE

S = TypeVar("S", bound=Hashable)
"""The name of a game state, which is a number where nothing else is said."""


class Scored(NamedTuple, Generic[S]):
    """One row: a seat's part in an episode, with its reward."""

    state: S
    episode: int
    """Number of the episode among those of its state."""
    seat: int
    reward: float
    by_seat: bool = False
    """Whether the seats of an episode have rewards of their own."""
    partner: str = ""
    """The players of the seats that are not trained."""


class Key(NamedTuple, Generic[S]):
    """The name of a group of rows."""

    state: S
    seat: int = 0
    """The seat of the group's rows; 0 where all seats of an episode share one reward."""
    partner: str = ""


def comparison_key(row: Scored[S]) -> Key[S]:
    """Returns the key of the group to which a row belongs: rows with equal keys are compared with each other.

    These are the rows of one game state's episodes with the same partner, and, where seats have rewards of their own,
    of the same seat. Rows that share the reward of an episode are in one group, where the episode counts once.
    """
    return Key(row.state, row.seat if row.by_seat else 0, row.partner)


def groups_of(rows: Iterable[Scored[S]]) -> dict[Key[S], dict[int, float]]:
    """Returns the groups of some rows, each as the reward of each of its episodes, in the order of the rows."""
    groups: dict[Key[S], dict[int, float]] = {}
    for row in rows:
        groups.setdefault(comparison_key(row), {})[row.episode] = row.reward
    return groups


@dataclass(frozen=True)
class Signal:
    """Number of groups, and of those without a signal; groups of one episode count in both."""

    groups: int
    without: int

    @classmethod
    def of(cls, groups: Iterable[Collection[float]]) -> Signal:
        """Count groups, each given as the rewards of its episodes."""
        found = [has_signal(rewards) for rewards in groups]
        return cls(len(found), found.count(False))


def has_signal(rewards: Collection[float]) -> bool:
    """Whether the rewards of a group differ, so that its group-relative advantages differ from 0.

    A single episode has no signal.
    """
    return max(rewards) - min(rewards) > SAME_SCORE
