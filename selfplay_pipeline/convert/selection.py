"""Selection of rows for imitation and of held-out groups, without side effects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from selfplay_pipeline.metrics.signal import Scored, comparison_key, groups_of


def best_episodes(rewards: Mapping[int, float], best: int) -> set[int]:
    """Returns the episodes of a group with the highest rewards; of equal ones, the earlier episodes.

    Args:
        rewards: Rewards by episode number.
        best: Number of episodes; 0 means all.
    """
    return set(sorted(rewards, key=lambda episode: (-rewards[episode], episode))[: best or None])


def best_of_groups(rows: Sequence[Scored[int]], best: int) -> list[bool]:
    """Returns for each row whether its episode is among the best of its group.

    Args:
        rows: Rewards and group keys of the rows.
        best: Number of episodes per group; 0 means all.
    """
    chosen = {key: best_episodes(rewards, best) for key, rewards in groups_of(rows).items()}
    return [row.episode in chosen[comparison_key(row)] for row in rows]


def held_out(groups: Iterable[int], share: float, seed: int) -> set[int]:
    """Returns a random share of the groups: at least one if `share` is above 0, and never all."""
    names = np.unique([*groups])
    count = min(max(1, round(share * len(names))), len(names) - 1) if share else 0
    return {int(name) for name in np.random.default_rng(seed).permutation(names)[:count]}
