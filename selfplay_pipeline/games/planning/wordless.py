"""Line of play without words: the agent proposes by its own view and the rules, and its proposal is accepted.

The expected reward of each itinerary is a mean over preferences drawn by the rules, which say nothing about the places.
`pass` and `counter` do not exist here: the user proposes nothing, so that the agent alone decides. In free play the
user can also tell something by accepting and rejecting, which this line leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfplay_pipeline.games.planning.rules import (
    Array,
    Place,
    PlanningConfig,
    PlanningState,
    legs,
    miles_between,
    scores,
)
from selfplay_pipeline.games.planning.states import draw_preferences, weight
from selfplay_pipeline.games.silence import SILENCE, LineName, Rewards, best_of_means

DRAWS = 300
"""Number of preferences drawn for each estimate."""


def wordless_rewards(
    states: Sequence[PlanningState], config: PlanningConfig, rng: np.random.Generator
) -> dict[LineName, Rewards]:
    """Returns the expected reward of one proposal of the agent that hears nothing, on each state."""
    return {SILENCE: best_of_means(states, lambda state: mean_rewards(state.places, config, rng, DRAWS))}


def mean_rewards(places: Sequence[Place], config: PlanningConfig, rng: np.random.Generator, draws: int) -> Array:
    """Returns the mean reward of each itinerary over preferences drawn by the rules."""
    total, miles, kept = np.zeros((len(places),) * 3), miles_between(places), 0
    for _ in range(draws):
        wishes = draw_preferences(config, rng)
        found = scores([(wish, wish.weight) for wish in wishes], places, legs(miles, weight(rng)))
        found -= np.nanmin(found)
        span = np.nanmax(found)
        if span > 0:  # other states are drawn again by the rules
            total += found / span
            kept += 1
    return np.asarray(total / kept)
