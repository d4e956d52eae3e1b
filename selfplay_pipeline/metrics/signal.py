"""Groups of rows that GRPO compares, and which groups it can learn from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sized
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import SAME_SCORE

S = TypeVar("S", bound=Hashable)
"""Type of the identifier of a game state, such as a number."""


class Scored(NamedTuple, Generic[S]):
    """A training row, reduced to its episode, seat, reward and partners."""

    state: S
    episode: int
    """Number of the episode within its state."""
    seat: int
    reward: float
    by_seat: bool = False
    """Whether each seat of an episode has its own reward."""
    partner: str = ""
    """Players of the untrained seats, with the numbers of these seats."""


class Key(NamedTuple, Generic[S]):
    """Key of a group of rows; rows with equal keys are compared."""

    state: S
    seat: int = 0
    """Seat of the group's rows; 0 if all seats of an episode share one reward."""
    partner: str = ""
    """Players of the untrained seats, with the numbers of these seats."""


def comparison_key(row: Scored[S]) -> Key[S]:
    """Returns the key of the group to which a row belongs: rows with equal keys are compared with each other.

    These are the rows of one game state with the same partner in the same seats and, if each seat has its own reward,
    the same seat. If seats share a reward, all rows of an episode are in one group, in which the episode counts once.
    """
    return Key(row.state, row.seat if row.by_seat else 0, row.partner)


def groups_of(rows: Iterable[Scored[S]]) -> dict[Key[S], dict[int, float]]:
    """Returns the groups of some rows by key; each group holds its rewards by episode, in the order of the rows."""
    groups: dict[Key[S], dict[int, float]] = {}
    for row in rows:
        groups.setdefault(comparison_key(row), {})[row.episode] = row.reward
    return groups


def check_compared(source: str, groups: Collection[Sized], episodes_per_state: int) -> None:
    """Raises UserError unless some group has two episodes, which GRPO needs to compare.

    Args:
        source: Name of the episodes for the message.
        groups: The episodes of each group.
        episodes_per_state: Largest number of episodes of a state, whether or not they are compared.
    """
    if episodes_per_state < 2:
        raise UserError(
            f"{source}: one episode per state, so that GRPO has no rewards to compare and all advantages are 0; "
            "play each state at least twice (--episodes-per-state 2)"
        )
    if all(len(group) < 2 for group in groups):
        raise UserError(
            f"{source}: no two episodes of a state are compared with each other, because each was played with another "
            "partner or from another seat with a reward of its own; play each state at least twice with each"
        )


@dataclass(frozen=True)
class Signal:
    """Number of groups, and number of groups without a signal; a group of one episode counts in both."""

    groups: int
    without: int

    @property
    def share(self) -> float:
        """Share of the groups that have no signal."""
        return self.without / max(1, self.groups)

    @classmethod
    def of(cls, groups: Iterable[Collection[float]]) -> Signal:
        """Returns the counts for groups, each given as the rewards of its episodes."""
        found = [has_signal(rewards) for rewards in groups]
        return cls(len(found), found.count(False))


def has_signal(rewards: Collection[float]) -> bool:
    """Whether the rewards of a group differ, so that its group-relative advantages differ from 0.

    A single episode has no signal.
    """
    return max(rewards) - min(rewards) > SAME_SCORE
