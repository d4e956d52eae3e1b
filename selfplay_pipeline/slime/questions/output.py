"""Output files of `selfplay slime questions`: plots, analysis.json and analysis.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import pandas as pd

from selfplay_pipeline.core.files import read_model, write_bytes
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.charts import Chart, Series
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.slime.questions.analysis import METHOD, Analysis, count
from selfplay_pipeline.slime.questions.records import FIGURES

HUMANS = "humans (8×8)"
MEANS = ": means, 95 % intervals"
BY_QUESTIONS = "reward_by_questions"
CHARTS = {
    "questions": "Questions", "facts": "Facts asked for", "asking": "Messages that ask", "reward": "Reward",
    "kinds": "Kinds of questions", "learned": "What questions bring", "leaks": "Leak meter",
    "length": "Length of episodes", BY_QUESTIONS: "Reward by questions",
}  # fmt: skip
"""Titles of all possible charts by key. All but `kinds` and the last show the figure of that name over the steps."""
ALL_PLOTS = {f"{key}.{form}" for key in CHARTS for form in get_args(Format)}
WITH_HUMANS = ("questions", "facts", "asking", "reward")
"""Charts with a reference line that shows human episodes."""


def write(analysis: Analysis, formats: Sequence[Format], out: Path) -> list[Path]:
    """Write plots, analysis.json and analysis.md, and return the files.

    All contents are computed before the first file is written. Plots of an earlier analysis in the folder are removed.

    Raises:
        UserError: The folder cannot be written, or has an analysis that cannot be read.
    """
    files = {f"{chart.key}.{form}": draw(chart, form) for chart in charts_of(analysis) for form in formats}
    record, earlier = out / "analysis.json", list[str]()
    if record.exists():
        earlier = read_model(record, Analysis, "selfplay slime questions").plots
    with_plots = analysis.model_copy(update={"plots": sorted(files)})
    files[record.name] = (with_plots.model_dump_json(indent=2) + "\n").encode()
    files["analysis.md"] = in_markdown(analysis).encode()
    for name, data in files.items():
        write_bytes(out / name, data)
    for stale in ALL_PLOTS & set(earlier) - files.keys():
        (out / stale).unlink(missing_ok=True)  # a plot of other episodes would contradict the rest
    return [out / name for name in files]


def table_of(analysis: Analysis) -> tuple[list[str], list[list[str]]]:
    """Returns the head and the rows of the table: each step, all steps, humans."""
    head = [analysis.unit, "episodes", *(figure.label for figure in FIGURES.values())]
    rows = [[str(step.step), str(step.episodes), *_cells(step.figures)] for step in analysis.steps]
    rows.append(["all", str(analysis.episodes), *_cells(analysis.overall)])
    if analysis.human:
        # Humans answer in words more than in numbers, so that the facts they told cannot be counted.
        unseen = dict.fromkeys(("learned", "leaks"), Interval(value=None, low=None, high=None))
        rows.append(["humans", str(2 * analysis.human.games), *_cells(analysis.human.figures | unseen)])
    return head, rows


def _cells(figures: dict[str, Interval]) -> list[str]:
    return [str(figures[name]) for name in FIGURES]


def in_markdown(analysis: Analysis) -> str:
    """Returns the contents of `analysis.md`."""
    head, rows = table_of(analysis)
    lines = [f"# Questions in {analysis.source}", "", *(f"- {sentence}" for sentence in analysis.verdicts), ""]
    lines += ["| " + " | ".join(row) + " |" for row in (head, ["---:"] * len(head), *rows)]
    lines += ["", METHOD, ""]
    if analysis.lost:
        lines += [f"Left out: {count(analysis.lost, 'episode')} in which a machine failed.", ""]
    if analysis.human:
        lines += [
            f"Humans: {analysis.human.games} {analysis.human.counted}. Of their {analysis.human.messages:,} messages "
            f"{analysis.human.with_question_mark:.1%} hold a question mark; the mean of the episodes' shares is "
            f"{analysis.human.with_question_mark_mean_of_episodes:.1%}.",
            "",
        ]
    return "\n".join(lines)


def charts_of(analysis: Analysis) -> list[Chart]:
    """Returns the charts that have data."""
    charts = [_over_steps(analysis, key) for key in CHARTS if key != BY_QUESTIONS]
    if len(bins := analysis.reward_by_questions) > 1:
        rewards = _series("episodes", _known({number: found.reward for number, found in enumerate(bins)}))
        names = [str(found.low) if found.low == found.high else f"{found.low}–{found.high}" for found in bins]
        axes = ("questions in an episode", "reward above its step's mean")
        charts.append(
            Chart(BY_QUESTIONS, CHARTS[BY_QUESTIONS] + MEANS, "", *axes, [rewards], {"mean": 0.0}, "points", names)
        )
    return [chart for chart in charts if any(len(series.x) for series in chart.series)]


def _over_steps(analysis: Analysis, key: str) -> Chart:
    """Returns a chart of figures over the steps; if only one step has data, it shows points with error bars."""
    figures = [FIGURES[name] for name in (("specific", "repeated") if key == "kinds" else (key,))]
    found = [_known({step.step: step.figures[figure.name] for step in analysis.steps}) for figure in figures]
    steps = sorted({step for frame in found for step in frame.index})
    alone = len(steps) == 1
    if alone:
        found = [frame.reset_index(drop=True) for frame in found]
    lines = {"optimum": 1.0} if key == "reward" else {}
    if analysis.human and key in WITH_HUMANS and (humans := analysis.human.figures[key].value) is not None:
        lines = {HUMANS: humans, **lines}
    return Chart(
        key, CHARTS[key] + MEANS, "", analysis.unit,
        figures[0].label if len(figures) == 1 else "share of questions",
        [_series(figure.label, frame) for figure, frame in zip(figures, found, strict=True)],
        lines, share=figures[0].unit == "share",
        style="points" if alone else "curve", names=[str(step) for step in steps] if alone else (),
    )  # fmt: skip


def _known(intervals: Mapping[int, Interval]) -> pd.DataFrame:
    """Returns the estimates by their numbers; an interval that cannot be estimated has no width."""
    rows = [found.model_dump() for found in intervals.values()]
    known = pd.DataFrame(rows, [*intervals], ["value", "low", "high"], dtype=float).dropna(subset="value")
    return known.assign(low=known.low.fillna(known.value), high=known.high.fillna(known.value))


def _series(label: str, known: pd.DataFrame) -> Series:
    return Series(label, known.index.tolist(), *(known[column].tolist() for column in ("value", "low", "high")))
