"""Line of play without words: the agent proposes by its own view and the rules, and its proposal is accepted.

The expected reward of each pair of flights is a mean over states drawn given the agent's view. `pass` and `counter` do
not exist here: users propose nothing, so that the agent alone decides. In free play users can also tell something by
accepting and rejecting, which this line leaves out.
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
from selfplay_pipeline.games.silence import SILENCE, LineName, Rewards, best_of_means

DRAWS = 300
"""Number of states drawn for each estimate."""


def wordless_rewards(
    states: Sequence[MediationState], config: MediationConfig, rng: np.random.Generator
) -> dict[LineName, Rewards]:
    """Returns the expected reward of one proposal of the agent that hears nothing, on each state."""
    return {SILENCE: best_of_means(states, lambda state: mean_rewards(state.users, config, rng, DRAWS))}


def mean_rewards(
    users: Sequence[User], config: MediationConfig, rng: np.random.Generator, draws: int
) -> NDArray[np.float64]:
    """Returns the mean reward of each pair of flights over states drawn given the agent's view.

    Args:
        users: Both users; only what the agent sees of them takes part.
        config: The rules.
        rng: Source of the draws.
        draws: Number of states.
    """
    one, other = (_own_points(user, config, rng, draws) for user in users)
    ends = [np.array([flight.end for flight in user.flights]) for user in users]
    prefs = rng.integers(1, MOST_ARRIVAL_PREF + 1, (draws, 1, 1))
    arrival = (-(prefs * (np.abs(ends[0][:, None] - ends[1]) // 60) / 3)).astype(np.int64)
    scores = (one[:, :, None] + other[:, None, :] + 2 * arrival).reshape(draws, -1)
    worst = scores.min(axis=1, keepdims=True)
    span = scores.max(axis=1, keepdims=True) - worst
    rewards = ((scores - worst) / np.maximum(span, 1))[span[:, 0] > 0]  # other states are drawn again by the rules
    return np.asarray(rewards.mean(axis=0)).reshape(len(ends[0]), len(ends[1]))


def _own_points(user: User, config: MediationConfig, rng: np.random.Generator, draws: int) -> NDArray[np.int64]:
    """Returns the points for meetings and price of each flight, shape (draws, flights)."""
    prices = np.array([flight.price for flight in user.flights])
    means, chances = mean_prices(tuple(sorted(prices.tolist())))
    mean = rng.choice(means, (draws, 1), p=chances)
    points = (-rng.integers(1, MOST_PRICE_PREF + 1, (draws, 1)) * ((prices - mean) / mean)).astype(np.int64)
    for draw, spans in enumerate(Calendars(user, config).drawn(rng, draws, draws)):
        importance = rng.integers(1, MOST_IMPORTANT + 1, len(spans))
        points[draw] -= clashes(np.array(spans), user.flights) @ importance
    return np.asarray(points, np.int64)
