"""Analyses the policy's questions: figures, trends over the steps, correlation with reward, and sentences on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.questions import statistics
from selfplay_pipeline.report.questions.human import HumanReference, human_reference
from selfplay_pipeline.report.questions.sources import Records
from selfplay_pipeline.report.questions.statistics import MIN_STATES, Bin, Step, Trend

TRENDS = ("questions", "facts", "asking", "reward")
"""Figures that are tested for a trend over the steps."""
METHOD = (
    "Brackets are 95 % intervals that take game states, never single episodes, as independent. A trend is the slope "
    "of the least-squares line of the episodes' figures over the steps, tested by the wild cluster bootstrap "
    "(Cameron, Gelbach and Miller 2008), two-sided at 5 % for each figure: it speaks about this run, not about another "
    "seed, and sees no rise that is followed by a fall. Correlations are Pearson's, of single episodes, after the "
    "mean of the step, or of the game state within its step, is removed from both figures."
)
NO_EVIDENCE = (
    "This is no evidence that the policy learned when to ask: where nothing is learned and the log-odds of asking "
    "drift at random by 0.05, 0.1 or 0.2 per iteration (standard deviation), the same test says rose or fell in 18, 27 "
    "and 40 of 40 simulated runs. Compare with a control run whose rewards are permuted, and with a scripted player "
    "that asks equally often."
)
"""Result of a simulation of ten iterations of 64 states with 8 episodes each, whose questions are geometric."""


class Analysis(BaseModel):
    """Contents of `analysis.json`.

    Attributes:
        lost: Number of episodes left out because a machine failed.
        human: Figures of human pairs, for episodes on states like theirs.
        overall: Figures of all steps together.
        correlations: Correlations of questions with reward, within steps and within game states.
    """

    source: str
    unit: str
    episodes: int
    lost: int
    verdicts: list[str]
    trends: dict[str, Trend]
    correlations: dict[str, Interval]
    overall: dict[str, Interval]
    steps: list[Step]
    reward_by_questions: list[Bin]
    human: HumanReference | None
    method: str = METHOD


def analyse(found: Records) -> Analysis:
    """Returns all figures and tests, with their conclusions in words."""
    records = found.records
    step, state = (np.array([getattr(record, name) for record in records]) for name in ("step", "group"))
    values = {name: statistics.values_of(records, name) for name in TRENDS}
    trends = {name: statistics.trend(step, values[name], state) for name in TRENDS}
    _, cell = np.unique(np.stack([step, state]), axis=1, return_inverse=True)
    correlations = {
        "within steps": statistics.correlation(values["questions"], values["reward"], step, state),
        "within game states": statistics.correlation(values["questions"], values["reward"], cell.ravel(), state),
    }
    steps, overall = statistics.by_step(records), statistics.figures_of(records)
    sentences = [_trend_in_words(name, trends[name], steps, found.unit) for name in TRENDS]
    if trends["questions"].verdict in ("rose", "fell"):
        sentences.insert(1, NO_EVIDENCE)
    sentences += [_correlation_in_words(correlations), _leaks_in_words(overall["leaks"])]
    return Analysis(
        source=str(found.path), unit=found.unit, episodes=len(records), lost=found.lost, verdicts=sentences,
        trends=trends, correlations=correlations, overall=overall, steps=steps,
        reward_by_questions=statistics.reward_by_questions(records),
        human=human_reference(found.comparable) if found.comparable is not None else None,
    )  # fmt: skip


def _trend_in_words(name: str, found: Trend, steps: Sequence[Step], unit: str) -> str:
    what = statistics.FIGURES[name].label
    if not found.episodes:
        return f"Whether {what} rose or fell cannot be told: no episode has any to count."
    if found.verdict == "cannot be told":
        return (
            f"Whether {what} rose or fell cannot be told: it is known at {count(found.steps, unit)} and on "
            f"{count(found.states, 'game state')}, and the test needs at least 2 and {MIN_STATES}."
        )
    ends = [f"{step.figures[name]} at {unit} {step.step}" for step in (steps[0], steps[-1])]
    chance = "p < 0.001" if found.p is not None and found.p < 0.001 else f"p = {found.p:.3f}"
    figures = (
        f"{ends[0]}, {ends[1]}; slope {_signed(found.slope)} per {unit}, {chance} (wild cluster bootstrap test, "
        f"two-sided, 5 %; {count(found.episodes, 'episode')}, {count(found.states, 'game state')})."
    )
    if found.verdict == "no evidence":
        return f"No evidence that {what} rose or fell: {figures}"
    return f"{what[0].upper()}{what[1:]} {found.verdict}: {figures}"


def _correlation_in_words(found: dict[str, Interval]) -> str:
    within = found["within steps"]
    figures = ", ".join(f"r = {interval} {where}" for where, interval in found.items()) + " (Pearson, means removed)"
    if within.value is None:
        return "Whether questions go with reward cannot be told: one of them never varied within a step."
    if within.low is None or within.high is None or within.low <= 0 <= within.high:
        return f"No evidence that within a step episodes with more questions end better or worse: {figures}."
    better = "better" if within.value > 0 else "worse"
    return f"Within a step, episodes with more questions end {better}: {figures}."


def _leaks_in_words(leaks: Interval) -> str:
    if leaks.value is None:
        return "Leak meter: the partner said nothing."
    return f"Leak meter: {leaks} of the partner's messages told a fact that nobody had asked for."


def count(number: int, thing: str) -> str:
    """Returns a number with its noun: `1 step`, `2 steps`."""
    return f"{number:,} {thing}{'s' * (number != 1)}"


def _signed(slope: Interval) -> str:
    """Returns a slope with two significant digits, since slopes may be small."""
    if slope.value is None or slope.low is None or slope.high is None:
        return "–" if slope.value is None else f"{slope.value:+.2g}"
    return f"{slope.value:+.2g} [{slope.low:+.2g}, {slope.high:+.2g}]"
