"""Output files of `selfplay questions`: plots, analysis.json and analysis.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from selfplay_pipeline.core.files import write_bytes
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.draw import Format, draw
from selfplay_pipeline.report.questions.analysis import METHOD, Analysis, count
from selfplay_pipeline.report.questions.charts import CHARTS, charts_of
from selfplay_pipeline.report.questions.statistics import FIGURES


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
