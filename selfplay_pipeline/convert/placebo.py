"""Rewards permuted within groups: a control that trains on the same episodes with uninformative rewards."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SPACE = 0x91ACEB0
"""Part of the seed, which separates the random streams of permutations from the random streams of game states."""


def permuted(rewards: Mapping[int, float], seed: int, state: int) -> dict[int, float]:
    """Returns the rewards of one group's episodes after a uniformly drawn permutation.

    The permutation may leave an episode's reward in place; if it could not, good episodes would get lower rewards on
    average than bad ones. Groups of one state with the same number of episodes get the same permutation, so all seats
    of an episode get the rewards of one other episode.

    Args:
        rewards: Rewards by episode number, in order.
        seed: Seed of the run.
        state: Number of the state; each state has its own permutation.
    """
    drawn = np.random.default_rng([SPACE, seed, state]).permutation([*rewards.values()])
    return dict(zip(rewards, drawn.tolist(), strict=True))
