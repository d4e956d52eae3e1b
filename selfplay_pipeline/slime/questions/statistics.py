"""Statistics of questions on data frames: figures by step, trends over the steps, correlation with reward. Pure.

Episodes on one game state are not independent: every interval and test takes the states as clusters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel
from scipy.sparse import csr_array

from selfplay_pipeline.metrics.bootstrap import CHUNK, RESAMPLES, Interval, Totals
from selfplay_pipeline.slime.questions.records import FIGURES, AskingRecord, parts_of

ALPHA = 0.05
"""Level of every test and interval."""
MOST_BINS = 7
"""Largest number of bins for the number of questions."""
MIN_STATES = 6
"""Smallest number of states for a test: with fewer, no pattern of signs has a probability below `ALPHA`."""

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
    """Episodes with `low` to `high` questions, and their reward minus the mean of their step."""

    low: int
    high: int
    episodes: int
    reward: Interval


def frame_of(records: Sequence[AskingRecord]) -> pd.DataFrame:
    """Returns the parts of every figure, one row per episode.

    The index has the levels `step` and `state`; the columns are pairs of a figure's name with `above` or `below`.
    """
    places = [(record.step, record.group) for record in records]
    parts = {(name, part): column for name in FIGURES
             for part, column in zip(("above", "below"), parts_of(records, name), strict=True)}  # fmt: skip
    return pd.DataFrame(parts, index=pd.MultiIndex.from_tuples(places, names=["step", "state"]))


def values_of(parts: pd.DataFrame, name: str) -> pd.Series:
    """Returns a figure of each episode; NaN if its denominator is 0."""
    below = parts[name, "below"]
    return parts[name, "above"] / below.where(below > 0)


def by_step(parts: pd.DataFrame) -> list[Step]:
    """Returns every figure at every step."""
    return [
        Step(step=step, episodes=len(part), states=part.index.unique("state").size, figures=figures_of(part))
        for step, part in parts.groupby(level="step")
    ]


def figures_of(parts: pd.DataFrame) -> dict[str, Interval]:
    """Returns ratios of sums over episodes, with intervals if at least two states have data."""
    state = parts.groupby(level="state").ngroup()
    # Plain sums, since those of pandas are compensated and differ in the last digit from all other figures.
    sums = parts.apply(lambda part: pd.Series(np.bincount(state, part)))
    names = list(parts.columns.unique(0))
    found = Totals.of({name: (sums[name, "above"], sums[name, "below"]) for name in names}).intervals()
    for name in names:
        if np.count_nonzero(sums[name, "below"]) < 2:
            found[name] = Interval(value=found[name].value, low=None, high=None)
    return found


def reward_by_questions(parts: pd.DataFrame) -> list[Bin]:
    """Returns the reward by the number of questions, after removal of any trend over the steps."""
    questions = values_of(parts, "questions")
    above = _centred(values_of(parts, "reward"), parts.groupby(level="step").ngroup())
    starts = np.unique(np.quantile(questions, np.arange(20) / 20, method="lower"))
    if len(starts) > MOST_BINS:
        starts = np.unique(np.quantile(questions, np.arange(MOST_BINS) / MOST_BINS, method="lower"))
    number = np.searchsorted(starts, questions, side="right") - 1
    inside = pd.get_dummies(number, dtype=float).set_index(parts.index)
    rewards = figures_of(pd.concat({"above": inside.mul(above, axis=0), "below": inside}, axis=1).swaplevel(axis=1))
    bins = questions.groupby(number).agg(low="min", high="max", episodes="size")
    return [Bin(**found, reward=rewards[number]) for number, found in bins.to_dict("index").items()]


def trend(steps: Numbers, values: Values, states: Numbers, resamples: int = RESAMPLES) -> Trend:
    """Returns the trend of a figure of single episodes over the steps, with a test for a rise or fall.

    All arguments have shape (episodes,); NaN is left out.
    """
    known = pd.DataFrame({"steps": steps, "values": values, "states": states}).dropna()
    counts = {"episodes": len(known), **known[["steps", "states"]].nunique()}
    if counts["steps"] < 2:
        return Trend(verdict="cannot be told", slope=Interval(value=None, low=None, high=None), p=None, **counts)
    x, y, state = known.to_numpy().T
    slope, p = _slope(x - x.mean(), y - y.mean(), np.zeros(len(x), int), state, resamples)
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

    With steps as strata, the correlation cannot come from a common trend. With the states of each step as strata, it
    cannot come from hard states that also invite questions. The interval belongs to the slope between the standardised
    figures.
    """
    known = pd.DataFrame({"x": first, "y": second, "within": within, "state": states}).dropna()
    stratum = known.groupby("within").ngroup().to_numpy()
    x, y = (_centred(known[name].to_numpy(), stratum) for name in "xy")
    if not len(x) or min(x.std(), y.std()) < 1e-9:
        return Interval(value=None, low=None, high=None)
    found, _ = _slope(x / x.std(), y / y.std(), stratum, known.state.to_numpy(), resamples)
    return found.model_copy(
        update={name: None if end is None else min(1.0, max(-1.0, end)) for name, end in found if name != "value"}
    )


def _centred(values: Any, index: Any) -> Any:
    """Returns each value minus the mean of the values with the same index."""
    return values - (np.bincount(index, values) / np.bincount(index))[index]


def _slope(x: Values, y: Values, stratum: Numbers, states: Numbers, resamples: int) -> tuple[Interval, float | None]:
    """Returns the least-squares slope of y on x with its interval, and its two-sided p-value.

    The means of x and y are 0 in every stratum. The null hypothesis is that x makes no difference. The test is the wild
    cluster bootstrap (Cameron, Gelbach and Miller, "Bootstrap-based improvements for inference with clustered errors",
    2008): game states are the clusters, the null is imposed, signs are Rademacher's, the statistic is the slope over
    its cluster-robust standard error. Unlike a permutation of steps, the test is valid whether each state occurs in one
    step or in several. The interval excludes 0 exactly if the test rejects.
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
    """Returns |t|, rounded so that equal values compare as equal; infinite for a slope without error, 0 for a slope of
    0.
    """
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
