"""Finds the groups that GRPO can learn from.

A group is a set of rewards that GRPO compares with each other. If all seats share one reward, it is all episodes of one
state; if rewards differ between seats, it is one seat in these episodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from selfplay_pipeline.games.base import SAME_SCORE


@dataclass(frozen=True)
class Signal:
    """Number of groups, and of those without a signal; groups of one episode count in both."""

    groups: int
    without: int

    @classmethod
    def of(cls, groups: Iterable[Sequence[float]]) -> Signal:
        """Count groups, each given as the rewards of its episodes."""
        found = [has_signal(rewards) for rewards in groups]
        return cls(len(found), found.count(False))


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether the rewards of a group differ, so that its group-relative advantages differ from 0.

    A single episode has no signal.
    """
    return max(rewards) - min(rewards) > SAME_SCORE


def compared_seat(seat: int, *, shared: bool) -> int:
    """Returns the seat of the group: the row's seat, or 0 for all seats if they share one reward."""
    return 0 if shared else seat


def groups_of(episodes: Iterable[Mapping[int, float]], *, shared: bool) -> list[list[float]]:
    """Returns the groups of one state, each as the rewards of its episodes.

    Args:
        episodes: Rewards of the trained seats, for each episode of the state.
        shared: Whether all seats of an episode have one reward.
    """
    groups: dict[int, list[float]] = {}
    for rewards in episodes:
        for seat, reward in {compared_seat(seat, shared=shared): reward for seat, reward in rewards.items()}.items():
            groups.setdefault(seat, []).append(reward)
    return list(groups.values())
