"""Rewards permuted within groups: a control that trains on the same episodes, but teaches nothing about them. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SPACE = 0x91ACEB0
"""Keeps these generators apart from those that draw states with the same numbers."""


def permuted(rewards: NDArray[np.float64], seed: int, group: int) -> NDArray[np.float64]:
    """Exchange the rewards of the episodes of one state, by a permutation that is drawn from all with equal chance.

    An episode may keep its reward: were that ruled out, good episodes would on average get less than bad ones. All
    seats of an episode get the rewards of one other episode, so that seats which share a reward still do.

    Args:
        rewards: of shape (episodes, seats), in the order of the episodes' numbers; NaN where a seat is not trained.
        seed: the run's.
        group: the state's number, which has a permutation of its own.
    """
    result = rewards.copy()
    for column in result.T:
        trained = ~np.isnan(column)
        column[trained] = np.random.default_rng([SPACE, seed, group]).permutation(column[trained])
    return result
