"""Which groups GRPO can learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from selfplay_pipeline.games.base import SAME_SCORE


def has_signal(rewards: Sequence[float]) -> bool:
    """Whether the episodes of a group did not all score alike, so that their group-relative advantages differ from 0.

    One episode alone has no signal.
    """
    return max(rewards) - min(rewards) > SAME_SCORE


def without_signal(groups: Iterable[Sequence[float]]) -> int:
    """How many groups have none."""
    return sum(not has_signal(rewards) for rewards in groups)
