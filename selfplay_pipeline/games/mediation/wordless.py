"""Line of play without words: the agent proposes by its own view and the rules, and its proposal is accepted.

The expected reward of each pair of flights is a mean over states drawn given the agent's view. One half of the draws
chooses the pair; the other half values it, since an estimate by the same draws would be too high. `pass` and `counter`
do not exist here: users propose nothing, so that the agent alone decides. In free play users can also tell something
by accepting and rejecting, which this line leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.mediation.rules import (
    MOST_ARRIVAL_PREF,
    MOST_IMPORTANT,
    MOST_PRICE_PREF,
    MediationConfig,
    MediationState,
    User,
    clashes,
)
from selfplay_pipeline.games.mediation.states import Calendars, mean_prices
from selfplay_pipeline.games.silence import SILENCE, LineName, Rewards

DRAWS = 300
"""Number of states drawn for each view, in each half."""


def wordless_rewards(
    states: Sequence[MediationState], config: MediationConfig, rng: np.random.Generator
) -> dict[LineName, Rewards]:
    """Returns the expected reward of one proposal of the agent that hears nothing, on each state."""
    found = []
    for state in states:
        one, other = (mean_rewards(state, config, rng) for _ in range(2))
        found.append((one.flat[other.argmax()] + other.flat[one.argmax()]) / 2)
    return {SILENCE: np.array(found)}


def mean_rewards(state: MediationState, config: MediationConfig, rng: np.random.Generator) -> NDArray[np.float64]:
    """Returns the mean reward of each pair of flights over states drawn given the agent's view."""
    one, other = (_own_points(user, config, rng) for user in state.users)
    ends = [np.array([flight.end for flight in user.flights]) for user in state.users]
    prefs = rng.integers(1, MOST_ARRIVAL_PREF + 1, (DRAWS, 1, 1))
    arrival = (-(prefs * (np.abs(ends[0][:, None] - ends[1]) // 60) / 3)).astype(np.int64)
    scores = (one[:, :, None] + other[:, None, :] + 2 * arrival).reshape(DRAWS, -1)
    worst = scores.min(axis=1, keepdims=True)
    span = scores.max(axis=1, keepdims=True) - worst
    rewards = ((scores - worst) / np.maximum(span, 1))[span[:, 0] > 0]  # other states are drawn again by the rules
    return np.asarray(rewards.mean(axis=0)).reshape(len(ends[0]), len(ends[1]))


def _own_points(user: User, config: MediationConfig, rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns the points for meetings and price of each flight, shape (draws, flights)."""
    prices = np.array([flight.price for flight in user.flights])
    means, chances = mean_prices(tuple(sorted(prices.tolist())))
    mean = rng.choice(means, (DRAWS, 1), p=chances)
    points = (-rng.integers(1, MOST_PRICE_PREF + 1, (DRAWS, 1)) * ((prices - mean) / mean)).astype(np.int64)
    for draw, spans in enumerate(Calendars(user, config).drawn(rng, DRAWS)):
        importance = rng.integers(1, MOST_IMPORTANT + 1, len(spans))
        points[draw] -= clashes(np.array(spans), user.flights) @ importance
    return np.asarray(points, np.int64)
