"""Selection of the rows that are imitated, and of those that are held out. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from selfplay_pipeline.metrics.signal import compared_seat


class Candidate(NamedTuple):
    """Facts that decide whether a row is imitated."""

    group: int
    """Number of its state."""
    episode: int
    """Number of the episode among those of its state."""
    seat: int
    reward: float
    """The seat's, normalised."""


def best_episodes(rewards: Mapping[int, float], best: int) -> set[int]:
    """The episodes of a group with the highest rewards; of those that scored alike, the earlier ones.

    Args:
        rewards: by the numbers of the episodes.
        best: how many; 0 means all.
    """
    return set(sorted(rewards, key=lambda episode: (-rewards[episode], episode))[: best or None])


def best_of_groups(candidates: Iterable[Candidate], best: int, *, shared: bool) -> list[bool]:
    """Returns for each row whether it is of one of the best episodes of its group.

    Args:
        best: episodes of a group; 0 means all.
        shared: whether all seats of an episode have one reward; else a seat is compared with itself alone.
    """
    found = list(candidates)
    groups: dict[Hashable, dict[int, float]] = {}
    for row in found:
        groups.setdefault(_group(row, shared), {})[row.episode] = row.reward
    chosen = {group: best_episodes(rewards, best) for group, rewards in groups.items()}
    return [row.episode in chosen[_group(row, shared)] for row in found]


def _group(row: Candidate, shared: bool) -> Hashable:
    return row.group, compared_seat(row.seat, shared=shared)


def held_out(groups: Iterable[int], share: float, seed: int) -> set[int]:
    """A random share of the groups, rounded, but one at least, if any; one at least stays."""
    names = np.unique([*groups])
    count = min(max(1, round(share * len(names))), len(names) - 1) if share else 0
    return {int(name) for name in np.random.default_rng(seed).permutation(names)[:count]}
