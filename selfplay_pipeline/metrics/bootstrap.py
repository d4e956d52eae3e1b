"""Means and differences with 95 % intervals that resample game states: episodes of one state are not independent.

Percentile bootstrap over clusters (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, chapters 8, 13).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy import special

RESAMPLES = 4_000
CHUNK = 250
"""Resamples drawn at a time, which bounds memory."""
SEEDS = 0x5EED5
"""Keeps the generator that draws seeds apart from those that draw states."""
PERCENTILES = (2.5, 97.5)

Column = Sequence[float] | NDArray[np.float64]


class Interval(BaseModel):
    """An estimate and its 95 % interval; None where there is too little to estimate it from."""

    value: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        return format(self)

    def __format__(self, sign: str) -> str:
        """The estimate and its interval in brackets; with `+` they have the signs of a difference."""
        if self.value is None:
            return "–"
        if self.low is None or self.high is None:
            return f"{self.value:{sign}.3f}"
        return f"{self.value:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]"

    def scaled(self, factor: float) -> Interval:
        """The same in another unit."""
        return Interval(**{end: None if value is None else value * factor for end, value in self})


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
    """Returns a weighted sum of the figures of several evaluations, which are paired by state.

    `contrast([(1, after), (-1, before)])` is the difference of two. Figures that are not in all of them are left out;
    so are, of each figure, resamples in which a denominator is 0.

    Raises:
        ValueError: the evaluations have different numbers of states.
    """
    return contrast_over_seeds([terms], resamples)


def contrast_over_seeds(
    seeds: Sequence[Sequence[tuple[float, Totals]]], resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """The mean over training seeds of `contrast`, with an interval for further seeds and further states.

    Two levels are resampled: seeds, and the states of each seed, which are its own. Few seeds spread less in resamples
    than the seeds that they stand for, so their part is widened until it is as wide as the t-interval of so many values
    (Hesterberg, "What Teachers Should Know About the Bootstrap", The American Statistician 69, 2015).
    With one seed, of whose kind nothing can be said, the interval is that over its states, as `contrast` has it.

    Args:
        seeds: for each seed the weighted evaluations, as `contrast` takes them.

    Raises:
        ValueError: the evaluations of a seed have another number of states.
    """
    every = [totals for terms in seeds for _, totals in terms]
    names = [name for name in every[0].names if all(name in totals.names for totals in every)]
    found = [_resampled(terms, names, resamples, stream) for stream, terms in enumerate(seeds)]
    values = np.array([value for value, _ in found])
    mean = values.mean(axis=0)
    states = np.mean([drawn - value for value, drawn in found], axis=0)
    picked = np.random.default_rng([SEEDS, len(seeds)]).multinomial(
        len(seeds), np.full(len(seeds), 1 / len(seeds)), size=resamples
    )
    spread = _widening(len(seeds)) * (picked @ (values - mean)) / len(seeds)
    return _collect(names, dict(zip(names, map(_number, mean), strict=True)), mean + spread + states)


def _resampled(
    terms: Sequence[tuple[float, Totals]], names: Sequence[str], resamples: int, stream: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The contrast of one seed, of shape (figures,), and in resamples of its states, of shape (resamples, figures)."""
    states = len(terms[0][1].numerators)
    if any(len(totals.numerators) != states for _, totals in terms):
        raise ValueError("a paired contrast needs the same states")
    weighted = [(weight, totals.select(names)) for weight, totals in terms]

    def value(counts: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros((len(counts), len(names)))
        for weight, part in weighted:
            total += weight * _ratio(counts @ part.numerators, counts @ part.denominators)
        return total

    drawn = [value(counts) for counts in _draws(states, resamples, stream)]
    return value(np.ones((1, states)))[0], np.concatenate(drawn)


def _widening(seeds: int) -> float:
    """Returns the factor by which intervals over few seeds are widened: sqrt(n / (n - 1)) t / z at their ends."""
    if seeds == 1:
        return 1.0
    share = PERCENTILES[1] / 100
    return float(np.sqrt(seeds / (seeds - 1)) * special.stdtrit(seeds - 1, share) / special.ndtri(share))


def _draws(states: int, resamples: int, stream: int) -> Iterator[NDArray[np.float64]]:
    """Yields how often each state is drawn, in chunks of (resamples, states), always the same."""
    rng = np.random.default_rng(stream)
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
