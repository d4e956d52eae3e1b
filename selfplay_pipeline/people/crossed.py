"""Means and differences with 95 % intervals over people and game states at once.

Each person plays several states, and each state is played by several people, so that neither the episodes of a person
nor those of a state are independent. The variance is the one of Cameron, Gelbach and Miller ("Robust Inference With
Multiway Clustering", Journal of Business and Economic Statistics 29, 2011): the variance over people plus the one over
states minus the one over their pairs, which both contain. It is at least the larger one of the first two. An interval
over people alone, or over states alone, leaves one of the spreads out.

Few people give a t-interval: its degrees of freedom are one less than the smaller one of the numbers of people and of
states that have the figure. With one such person or one such state there is no interval, since the spread is unknown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.metrics.bootstrap import Interval, limits_of

UPPER = 0.975


@dataclass(frozen=True)
class Crossed:
    """A numerator and a denominator per person, state and figure; a figure is the ratio of their sums.

    Shapes are (people, states, figures).

    Attributes:
        episodes: Number of episodes, shape (people, states).
    """

    names: tuple[str, ...]
    above: NDArray[np.float64]
    below: NDArray[np.float64]
    episodes: NDArray[np.int64]

    @classmethod
    def of(cls, measured: Sequence[tuple[str, int, Measures]], people: Sequence[str], states: Sequence[int]) -> Crossed:
        """Returns the sums of episodes.

        Args:
            measured: Person, state and figures of each episode.
            people: All people, in the order of the first axis.
            states: All states, in the order of the second axis.
        """
        names = tuple(dict.fromkeys(name for _, _, figures in measured for name in figures))
        sums = np.zeros((2, len(people), len(states), len(names)))
        episodes = np.zeros((len(people), len(states)), dtype=np.int64)
        rows, columns = ({one: at for at, one in enumerate(every)} for every in (people, states))
        for person, state, figures in measured:
            at = rows[person], columns[state]
            episodes[at] += 1
            for number, name in enumerate(names):
                sums[(slice(None), *at, number)] += figures.get(name, (0, 0))
        return cls(names, sums[0], sums[1], episodes)

    def intervals(self, bounded: Collection[str] = ()) -> dict[str, Interval]:
        """Returns all figures with their intervals, with the argument of `crossed_contrast`."""
        return crossed_contrast([(1, self)], bounded)


def crossed_contrast(terms: Sequence[tuple[float, Crossed]], bounded: Collection[str] = ()) -> dict[str, Interval]:
    """Returns a weighted sum of figures with their intervals; the episodes of a person are paired over all terms.

    Figures that some term lacks are left out. All terms have the same people and the same states.

    Args:
        terms: Weights and figures.
        bounded: Names of figures that lie in [0, 1]; their intervals end at the limits (see `bootstrap.py`).
    """
    names = [name for name in terms[0][1].names if all(name in term.names for _, term in terms)]
    shape = (*terms[0][1].episodes.shape, len(names))
    total, shares = np.zeros(len(names)), np.zeros(shape)  # shares of the error (linearised ratios)
    counted, least = np.zeros(shape, dtype=bool), np.full(len(names), np.iinfo(int).max)
    for weight, term in terms:
        own = [term.names.index(name) for name in names]
        above, below = term.above[:, :, own], term.below[:, :, own]
        whole = below.sum(axis=(0, 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = above.sum(axis=(0, 1)) / whole
            shares += weight * (above - ratio * below) / whole
        total += weight * ratio
        counted |= below != 0
        for axis in (0, 1):
            least = np.minimum(least, (below != 0).any(axis=axis).sum(axis=0))
    variances = [
        _variance(shares.sum(axis=1), counted.any(axis=1).sum(axis=0)),
        _variance(shares.sum(axis=0), counted.any(axis=0).sum(axis=0)),
        _variance(shares.reshape(shape[0] * shape[1], len(names)), counted.sum(axis=(0, 1))),
    ]
    variance = np.maximum(variances[0] + variances[1] - variances[2], np.maximum(variances[0], variances[1]))
    half = np.where(least > 1, special.stdtrit(np.maximum(least - 1, 1), UPPER) * np.sqrt(variance), np.nan)
    found = {name: _interval(value, width) for name, value, width in zip(names, total, half, strict=True)}
    limits = limits_of([weight for weight, _ in terms])
    return {name: one.within(*limits) if name in bounded else one for name, one in found.items()}


def _variance(shares: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns the variance of the sum of the shares of independent clusters, shape (figures,).

    Args:
        shares: Shares of the clusters, shape (clusters, figures).
        counts: Number of clusters that have a share of each figure, shape (figures,).
    """
    squares: NDArray[np.float64] = (shares**2).sum(axis=0)
    return np.where(counts > 1, squares * counts / np.maximum(counts - 1, 1), np.nan)


def _interval(value: float, half: float) -> Interval:
    if np.isnan(value):
        return Interval(value=None, low=None, high=None)
    if np.isnan(half):
        return Interval(value=float(value), low=None, high=None)
    return Interval(value=float(value), low=float(value - half), high=float(value + half))
