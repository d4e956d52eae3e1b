"""Output files of `selfplay questions`: plots, analysis.json and analysis.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from selfplay_pipeline.core.files import write_bytes
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.charts import Chart, Series
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.report.questions.analysis import METHOD, Analysis, count
from selfplay_pipeline.report.questions.records import FIGURES
from selfplay_pipeline.report.questions.statistics import Bin, Step

HUMANS = "humans (8×8)"
WITH_INTERVALS = "means, 95 % intervals"
CHARTS = ("questions", "facts", "asking", "reward", "kinds", "learned", "leaks", "length", "reward_by_questions")
"""Keys of all possible charts."""


def write(analysis: Analysis, formats: Sequence[Format], out: Path) -> list[Path]:
    """Write plots, analysis.json and analysis.md; all contents are computed before the first file is written.

    Raises:
        UserError: The folder cannot be written.
    """
    files = {f"{chart.key}.{form}": draw(chart, form) for chart in charts_of(analysis) for form in formats}
    files["analysis.json"] = (analysis.model_dump_json(indent=2) + "\n").encode()
    files["analysis.md"] = in_markdown(analysis).encode()
    for name, data in files.items():
        write_bytes(out / name, data)
    for stale in {f"{key}.{form}" for key in CHARTS for form in get_args(Format)} - files.keys():
        (out / stale).unlink(missing_ok=True)  # a file of another run would contradict the rest
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
    human = analysis.human.figures if analysis.human else {}
    charts = [
        _over_steps(analysis, "questions", "Questions", ["questions"], human),
        _over_steps(analysis, "facts", "Facts asked for", ["facts"], human),
        _over_steps(analysis, "asking", "Messages that ask", ["asking"], human, share=True),
        _over_steps(analysis, "reward", "Reward", ["reward"], human, {"optimum": 1.0}),
        _over_steps(analysis, "kinds", "Kinds of questions", ["specific", "repeated"], share=True),
        _over_steps(analysis, "learned", "What questions bring", ["learned"]),
        _over_steps(analysis, "leaks", "Leak meter", ["leaks"], share=True),
        _over_steps(analysis, "length", "Length of episodes", ["length"]),
    ]
    if len(analysis.reward_by_questions) > 1:
        charts.append(_reward_by_questions(analysis.reward_by_questions))
    return [chart for chart in charts if any(len(series.x) for series in chart.series)]


def _over_steps(
    analysis: Analysis, key: str, title: str, figures: Sequence[str], human: Mapping[str, Interval] = {},
    lines: Mapping[str, float] = {}, *, share: bool = False,
) -> Chart:  # fmt: skip
    """Returns a chart of figures over the steps; if only one step has data, it shows points with error bars."""
    known = [step for step in analysis.steps if any(step.figures[name].value is not None for name in figures)]
    alone = len(known) == 1
    series = [_series(name, known, alone) for name in figures]
    y_label = FIGURES[figures[0]].label if len(figures) == 1 else "share of questions"
    reference = human[figures[0]].value if figures[0] in human else None
    humans = {} if reference is None else {HUMANS: reference}
    return Chart(
        key, f"{title}: {WITH_INTERVALS}", "", analysis.unit, y_label, series, humans | dict(lines), share=share,
        style="points" if alone else "curve", names=[str(step.step) for step in known] if alone else (),
    )  # fmt: skip


def _series(name: str, steps: Sequence[Step], alone: bool) -> Series:
    known = [(step.step, found) for step in steps if (found := step.figures[name]).value is not None]
    return _with_ends(FIGURES[name].label, [0 if alone else x for x, _ in known], [found for _, found in known])


def _with_ends(label: str, x: Sequence[float], found: Sequence[Interval]) -> Series:
    """Returns a series; an interval that cannot be estimated has no width on the plot."""
    values = [interval.value or 0.0 for interval in found]
    low, high = (
        [value if end is None else end for value, end in zip(values, ends, strict=True)]
        for ends in ([interval.low for interval in found], [interval.high for interval in found])
    )
    return Series(label, x, values, low, high)


def _reward_by_questions(bins: Sequence[Bin]) -> Chart:
    names = [str(found.low) if found.low == found.high else f"{found.low}–{found.high}" for found in bins]
    return Chart(
        "reward_by_questions", f"Reward by questions: {WITH_INTERVALS}", "",
        "questions in an episode", "reward above its step's mean",
        [_with_ends("episodes", range(len(bins)), [found.reward for found in bins])], {"mean": 0.0}, "points", names,
    )  # fmt: skip
