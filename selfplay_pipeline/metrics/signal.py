"""Finds the groups that GRPO can learn from.

A group is what GRPO compares with each other: the episodes of one state, where all seats share one reward; one seat in
these episodes, where rewards differ between seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfplay_pipeline.games.base import SAME_SCORE


@dataclass(frozen=True)
class Signal:
    """Number of groups, and of groups without signal; groups of one episode count to both."""

    groups: int
    without: int

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> Signal:
        """Count groups, each given as the rewards of its episodes."""
        found = [has_signal(rewards) for rewards in groups]
        return cls(len(found), found.count(False))


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether the episodes of a group did not all score alike, so that their group-relative advantages differ from 0.

    One episode alone has no signal.
    """
    return max(rewards) - min(rewards) > SAME_SCORE


def compared_seat(seat: int, *, shared: bool) -> int:
    """The seat that a group is of: that of its rewards, or 0 for all seats where they share one reward."""
    return 0 if shared else seat


def groups_of(episodes: Iterable[Mapping[int, float]], *, shared: bool) -> list[list[float]]:
    """The groups of one state, each as the rewards of its episodes.

    Args:
        episodes: of each episode of the state, the rewards of the seats that are trained.
        shared: whether in each episode of the file all seats have one reward.
    """
    groups: dict[int, list[float]] = {}
    for rewards in episodes:
        for seat, reward in {compared_seat(seat, shared=shared): reward for seat, reward in rewards.items()}.items():
            groups.setdefault(seat, []).append(reward)
    return list(groups.values())
