"""Statistics of questions: figures by step, trends over the steps, correlation with reward. Pure.

Episodes on one game state are not independent: every interval and test takes the states as clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.sparse import csr_array

from selfplay_pipeline.metrics.bootstrap import CHUNK, RESAMPLES, Interval, Totals
from selfplay_pipeline.metrics.figures import figures_of as figures_of_games
from selfplay_pipeline.report.questions.records import AskingRecord

ALPHA = 0.05
"""Level of every test and interval."""
MOST_BINS = 7
"""Largest number of bins for the number of questions."""
MIN_STATES = 6
"""Smallest number of states for a test: with fewer signs, no pattern is rarer than `ALPHA`."""

NAMES = (
    "reward", "questions", "facts", "asking", "specific", "repeated", "learned", "messages", "length", "leaks",
)  # fmt: skip
"""Figures that an `AskingRecord` suffices for, in display order."""
FIGURES = {name: figures_of_games()[name] for name in NAMES}

Values = NDArray[np.float64]
Numbers = NDArray[np.int64]


class Step(BaseModel):
    """Figures of one step's episodes."""

    step: int
    episodes: int
    states: int
    figures: dict[str, Interval]


class Trend(BaseModel):
    """The least-squares line of a figure of single episodes over the steps, and the test of its slope."""

    verdict: Literal["rose", "fell", "no evidence", "cannot be told"]
    slope: Interval
    """Slope per step, with the interval that belongs to the test."""
    p: float | None
    """Two-sided p-value of the wild cluster bootstrap test."""
    episodes: int
    steps: int
    states: int


class Bin(BaseModel):
    """Episodes with `low` to `high` questions, and their reward above the mean of their step."""

    low: int
    high: int
    episodes: int
    reward: Interval


def parts_of(records: Sequence[AskingRecord], name: str) -> tuple[Values, Values]:
    """Returns a figure's numerator and denominator in each episode, shapes (episodes,)."""
    above, below = np.array([FIGURES[name].parts(record) for record in records], np.float64).reshape(-1, 2).T
    return above, below


def values_of(records: Sequence[AskingRecord], name: str) -> Values:
    """Returns a figure of each episode, shape (episodes,); NaN if its denominator is 0."""
    above, below = parts_of(records, name)
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0)


def by_step(records: Sequence[AskingRecord]) -> list[Step]:
    """Returns every figure at every step."""
    steps: dict[int, list[AskingRecord]] = {}
    for record in records:
        steps.setdefault(record.step, []).append(record)
    return [
        Step(step=step, episodes=len(found), states=len({record.group for record in found}), figures=figures_of(found))
        for step, found in sorted(steps.items())
    ]


def figures_of(records: Sequence[AskingRecord]) -> dict[str, Interval]:
    """Returns ratios of sums over episodes, with intervals if at least two states have data."""
    columns = {name: parts_of(records, name) for name in FIGURES}
    return clustered(columns, np.array([record.group for record in records]))


def clustered(columns: dict[str, tuple[Values, Values]], states: Numbers) -> dict[str, Interval]:
    """Returns ratios of sums over episodes with intervals; `states` is the game state of each, shape (episodes,)."""
    _, index = np.unique(states, return_inverse=True)
    sums = {name: (_sum(index, above), _sum(index, below)) for name, (above, below) in columns.items()}
    found = Totals.of(sums).intervals()
    for name, (_, below) in sums.items():
        if np.count_nonzero(below) < 2:
            found[name] = Interval(value=found[name].value, low=None, high=None)
    return found


def reward_by_questions(records: Sequence[AskingRecord]) -> list[Bin]:
    """Returns the reward by the number of questions, after removal of any trend over the steps."""
    rewards, questions = values_of(records, "reward"), values_of(records, "questions")
    _, step = np.unique([record.step for record in records], return_inverse=True)
    above = rewards - (_sum(step, rewards) / np.bincount(step))[step]
    starts = np.unique(np.quantile(questions, np.arange(20) / 20, method="lower"))
    if len(starts) > MOST_BINS:
        starts = np.unique(np.quantile(questions, np.arange(MOST_BINS) / MOST_BINS, method="lower"))
    number = np.searchsorted(starts, questions, side="right") - 1
    inside = [(number == bin).astype(np.float64) for bin in range(len(starts))]
    found = clustered(
        {str(bin): (above * mask, mask) for bin, mask in enumerate(inside)},
        np.array([record.group for record in records]),
    )
    return [
        Bin(low=int(start), high=int(questions[mask > 0].max()), episodes=int(mask.sum()), reward=found[str(bin)])
        for bin, (start, mask) in enumerate(zip(starts, inside, strict=True))
    ]


def trend(steps: Numbers, values: Values, states: Numbers, resamples: int = RESAMPLES) -> Trend:
    """Test a figure of single episodes for a rise or fall over the steps.

    All arguments have shape (episodes,); NaN is left out.
    """
    known = ~np.isnan(values)
    steps, values, states = steps[known], values[known], states[known]
    counts = {"episodes": len(values), "steps": len(np.unique(steps)), "states": len(np.unique(states))}
    if counts["steps"] < 2:
        return Trend(verdict="cannot be told", slope=Interval(value=None, low=None, high=None), p=None, **counts)
    slope, p = _slope(steps - steps.mean(), values - values.mean(), np.zeros_like(steps), states, resamples)
    verdict: Literal["rose", "fell", "no evidence", "cannot be told"] = "no evidence"
    if p is None:
        verdict = "cannot be told"
    elif p < ALPHA:
        verdict = "rose" if (slope.value or 0.0) > 0 else "fell"
    return Trend(verdict=verdict, slope=slope, p=p, **counts)


def correlation(
    first: Values, second: Values, within: Numbers, states: Numbers, resamples: int = RESAMPLES
) -> Interval:
    """Returns Pearson's correlation of two figures of single episodes, after the means of the strata `within` are
    removed.

    With steps as strata, a common trend over the steps cannot cause the correlation; with the states of a step as
    strata, neither can states that are hard and also invite questions. The interval is that of the slope between the
    standardised figures.
    """
    known = ~(np.isnan(first) | np.isnan(second))
    _, stratum = np.unique(within[known], return_inverse=True)
    size = np.bincount(stratum)
    x, y = (of[known] - (_sum(stratum, of[known]) / size)[stratum] for of in (first, second))
    if not len(x) or min(x.std(), y.std()) < 1e-9:
        return Interval(value=None, low=None, high=None)
    found, _ = _slope(x / x.std(), y / y.std(), stratum, states[known], resamples)
    return found.model_copy(
        update={name: None if end is None else min(1.0, max(-1.0, end)) for name, end in found if name != "value"}
    )


def _slope(x: Values, y: Values, stratum: Numbers, states: Numbers, resamples: int) -> tuple[Interval, float | None]:
    """Returns the least-squares slope of y on x with its interval, and its two-sided p-value.

    The means of x and y are 0 in every stratum. The null hypothesis is that x makes no difference. The test is the wild
    cluster bootstrap (Cameron, Gelbach and Miller, "Bootstrap-based improvements for inference with clustered errors",
    2008): game states are the clusters, the null is imposed, signs are Rademacher's, the statistic is the slope over
    its cluster-robust standard error. Unlike shuffled steps it is valid both for states of one step and for states that
    are repeated. The interval excludes 0 exactly if the test rejects.
    """
    _, state = np.unique(states, return_inverse=True)
    clusters = int(state.max()) + 1
    xx, xy = _sum(state, x * x), _sum(state, x * y)
    x_by_stratum: Any = csr_array((x, (stratum, state)))
    y_by_stratum: Any = csr_array((y, (stratum, state)))
    size = np.bincount(stratum)

    def slope_and_error(signs: Values) -> tuple[Values, Values]:
        """Returns slope and standard error if each state's residuals under the null get these signs, shapes
        (resamples,).
        """
        slope = signs @ xy / xx.sum()
        means = (y_by_stratum @ signs.T) / size[:, None]
        scores = signs * xy - (x_by_stratum.T @ means).T - np.outer(slope, xx)
        return slope, np.sqrt((scores**2).sum(axis=1)) / xx.sum()

    slope, error = slope_and_error(np.ones((1, clusters)))
    value = float(slope[0])
    if clusters < MIN_STATES:
        return Interval(value=value, low=None, high=None), None
    drawn = np.concatenate([_t(*slope_and_error(signs)) for signs in _signs(clusters, resamples)])
    p = (1 + int((drawn >= _t(slope, error)).sum())) / (1 + resamples)
    critical = np.sort(drawn)[-math.ceil(ALPHA * (1 + resamples) - 1)] * (1 + 1e-8)  # ties do not reject
    margin = float(critical * error[0])
    if not math.isfinite(margin):
        return Interval(value=value, low=None, high=None), p
    return Interval(value=value, low=value - margin, high=value + margin), p


def _t(slope: Values, error: Values) -> Values:
    """Returns |t|, rounded so that equal values compare as equal; infinite for a line without scatter, 0 if flat."""
    size = np.where(np.abs(slope) > 1e-12, np.abs(slope), 0.0)
    t: Values = np.divide(size, error, out=np.where(size > 0, np.inf, 0.0), where=error > 1e-9 * size)
    return t.round(9)


def _signs(states: int, resamples: int) -> Iterator[Values]:
    """Yields random signs for each state, shape (resamples, states), in chunks.

    The signs are always the same, so that figures are reproducible.
    """
    rng = np.random.default_rng(0)
    for start in range(0, resamples, CHUNK):
        yield rng.choice(np.array([-1.0, 1.0]), (min(CHUNK, resamples - start), states))


def _sum(index: Numbers, values: Values) -> Values:
    """Returns the sums over the episodes of each index."""
    return np.bincount(index, values).astype(np.float64)
