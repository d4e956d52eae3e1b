"""Selection of the rows that are imitated, and of those that are held out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from selfplay_pipeline.metrics.signal import Scored, comparison_key, groups_of


def best_episodes(rewards: Mapping[int, float], best: int) -> set[int]:
    """The episodes of a group with the highest rewards; of those that scored alike, the earlier ones.

    Args:
        rewards: by the numbers of the episodes.
        best: how many; 0 means all.
    """
    return set(sorted(rewards, key=lambda episode: (-rewards[episode], episode))[: best or None])


def best_of_groups(rows: Sequence[Scored[int]], best: int) -> list[bool]:
    """Returns for each row whether it is of one of the best episodes of its group.

    Args:
        best: episodes of a group; 0 means all.
    """
    chosen = {key: best_episodes(rewards, best) for key, rewards in groups_of(rows).items()}
    return [row.episode in chosen[comparison_key(row)] for row in rows]


def held_out(groups: Iterable[int], share: float, seed: int) -> set[int]:
    """A random share of the groups, rounded, but one at least, if any; one at least stays."""
    names = np.unique([*groups])
    count = min(max(1, round(share * len(names))), len(names) - 1) if share else 0
    return {int(name) for name in np.random.default_rng(seed).permutation(names)[:count]}
