"""Rewards permuted within groups: a control that trains on the same episodes, but teaches nothing about them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

SPACE = 0x91ACEB0
"""Keeps these generators apart from those that draw states with the same numbers."""


def permuted(rewards: Mapping[int, float], seed: int, state: int) -> dict[int, float]:
    """Exchange the rewards of the episodes of one group, by a permutation that is drawn from all with equal chance.

    An episode may keep its reward: were that ruled out, good episodes would on average get less than bad ones. Groups
    of one state with as many episodes are permuted alike, so that all seats of an episode get the rewards of one other.

    Args:
        rewards: by the numbers of the episodes, in their order.
        seed: the run's.
        state: the state's number, which has a permutation of its own.
    """
    drawn = np.random.default_rng([SPACE, seed, state]).permutation([*rewards.values()])
    return dict(zip(rewards, drawn.tolist(), strict=True))
