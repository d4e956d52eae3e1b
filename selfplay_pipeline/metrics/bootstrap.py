"""Means and differences with 95 % intervals that resample game states: episodes of one state are not independent.

Percentile bootstrap over clusters (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8, 13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

RESAMPLES = 4_000
CHUNK = 250
"""Resamples drawn at a time, which bounds memory."""
PERCENTILES = (2.5, 97.5)

Column = Sequence[float] | NDArray[np.float64]


class Interval(BaseModel):
    """An estimate and its 95 % interval; None where there is too little to estimate it from."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.value is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.value:.3f}"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Totals:
    """Per game state and figure a numerator and a denominator; a figure is the ratio of their sums over states.

    Shapes are (states, figures). A mean over episodes has the number of episodes as its denominator.
    """

    names: tuple[str, ...]
    numerators: NDArray[np.float64]
    denominators: NDArray[np.float64]

    @classmethod
    def of(cls, columns: Mapping[str, tuple[Column, Column]]) -> Totals:
        """Make totals from (numerators, denominators) by name, each one number per state."""
        pairs = list(columns.values())
        return cls(
            tuple(columns),
            np.array([above for above, _ in pairs], dtype=np.float64).T,
            np.array([below for _, below in pairs], dtype=np.float64).T,
        )

    def select(self, names: Sequence[str]) -> Totals:
        """The totals of only these figures, in this order."""
        columns = [self.names.index(name) for name in names]
        return Totals(tuple(names), self.numerators[:, columns], self.denominators[:, columns])

    def intervals(self, resamples: int = RESAMPLES) -> dict[str, Interval]:
        """All figures with their intervals."""
        return contrast([(1, self)], resamples)


def contrast(terms: Sequence[tuple[float, Totals]], resamples: int = RESAMPLES) -> dict[str, Interval]:
    """A weighted sum of the figures of several evaluations, paired: their common states are resampled together.

    `contrast([(1, after), (-1, before)])` is the difference of two. Figures that are not in all of them are left out;
    so are, of each figure, resamples in which a denominator is 0.

    Raises:
        ValueError: they have another number of states.
    """
    first = terms[0][1]
    if any(len(totals.numerators) != len(first.numerators) for _, totals in terms):
        raise ValueError("a paired contrast needs the same states")
    names = [name for name in first.names if all(name in totals.names for _, totals in terms)]
    weighted = [(weight, totals.select(names)) for weight, totals in terms]

    def value(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros((len(counts), len(names)))
        for weight, part in weighted:
            total += weight * _ratio(counts @ part.numerators, counts @ part.denominators)
        return total

    states = len(first.numerators)
    drawn = [value(counts) for counts in _draws(states, resamples)]
    values = dict(zip(names, map(_number, value(np.ones((1, states)))[0]), strict=True))
    return _collect(names, values, np.concatenate(drawn))


def _draws(states: int, resamples: int) -> Iterator[NDArray[np.float64]]:
    """How often each state is drawn, in chunks of (resamples, states). Always the same, so that figures repeat."""
    rng = np.random.default_rng(0)
    share = np.full(states, 1 / states)
    for start in range(0, resamples, CHUNK):
        yield rng.multinomial(states, share, size=min(CHUNK, resamples - start)).astype(np.float64)


def _ratio(above: NDArray[np.float64], below: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)


def _collect(
    names: Sequence[str], values: Mapping[str, float | None], drawn: NDArray[np.float64]
) -> dict[str, Interval]:
    result = {}
    for column, name in enumerate(names):
        sample = drawn[:, column][~np.isnan(drawn[:, column])]
        if values[name] is None or not len(sample):
            result[name] = Interval(value=None, low=None, high=None)
        else:
            low, high = np.percentile(sample, PERCENTILES)
            result[name] = Interval(value=values[name], low=float(low), high=float(high))
    return result


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
