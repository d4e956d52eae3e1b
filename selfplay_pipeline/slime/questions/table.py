"""Closing table of `selfplay slime questions`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.slime.questions.analysis import Analysis, count
from selfplay_pipeline.slime.questions.records import FIGURES

SHOWN = ("questions", "asking", "specific", "repeated", "learned", "reward", "leaks")
MOST_ROWS = 16
"""Number of steps on the screen, the first and last ones; analysis.md has all of them."""


def show_analysis(analysis: Analysis, files: Sequence[Path]) -> None:
    """Print the figures by step, the verdicts, and the paths of the plots."""
    console = Terminal()
    table = Table(
        title=f"{analysis.episodes:,} episodes in {one_line(str(analysis.source))}",
        caption=f"step: {analysis.unit}; n: episodes; " + "; ".join(f"{name}: {FIGURES[name].label}" for name in SHOWN),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("step", "n", *SHOWN):
        table.add_column(name, justify="right", no_wrap=True)
    steps = analysis.steps
    half = MOST_ROWS // 2
    for number, step in enumerate(steps):
        if len(steps) <= MOST_ROWS or number < half or number >= len(steps) - half:
            table.add_row(str(step.step), str(step.episodes), *(_short(step.figures[name].value) for name in SHOWN))
        elif number == half:
            table.add_row("…")
    if analysis.human:
        human = analysis.human
        table.add_row(
            "humans", str(2 * human.games), *(_short(human.figures[name].value) for name in SHOWN), style="dim"
        )
    console.print(table)
    if analysis.lost:
        console.print(f"left out: {count(analysis.lost, 'episode')} in which a machine failed")
    for sentence in analysis.verdicts:
        console.print(sentence, soft_wrap=True)
    names = ", ".join(file.name for file in files)
    console.print(one_line(f"{len(files)} files in {files[0].parent}: {names}"), soft_wrap=True)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
