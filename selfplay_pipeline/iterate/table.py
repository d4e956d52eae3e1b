"""Table of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Group
from rich.table import Table

from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.iterate.folder import RunDirectory, Stage
from selfplay_pipeline.iterate.held_out import IN_TABLE, WORDLESS, Evaluated
from selfplay_pipeline.iterate.history import signal_of, wordless_in_words
from selfplay_pipeline.metrics.bootstrap import Interval

LIVE_ROWS = 12
"""Number of iterations in the table of a running run."""
OF_EPISODES = ("reward", "agreed", "illegal", "messages")
"""Figures of training episodes in the table, with short names as heads."""
ALWAYS = ("\neval", "eval\ngreedy")
"""Columns that the table has even before the first evaluation."""
EXPLAINED = {
    "\nforeign": "foreign: with the foreign player",
    "\ntalk": "talk: talk score",
    "\nworth": "worth: worth of words",
}
"""Explanations of columns."""
PLAY_AND_TRAIN: tuple[Stage, ...] = ("generate", "train")


def live_table(path: Path) -> Table:
    """Returns the table of a running run, read from its files."""
    run = RunDirectory(path)
    run.load()
    return run_table(run, newest=LIVE_ROWS)


def live_tables(paths: Iterable[Path]) -> Group:
    """Returns the tables of the running members of a population."""
    return Group(*map(live_table, paths))


def run_table(run: RunDirectory, newest: int | None = None) -> Table:
    """Returns a table with one row per iteration, or only the `newest` rows; cells of unfinished stages are empty.

    Its caption gives the known expected rewards of strategies without words.
    """
    evaluations = {number: run.state.evaluated(number) for number in sorted(run.state.iterations)}
    lines = next((found.below(WORDLESS) for found in evaluations.values() if found), {})
    held_out = {
        heading: cells for heading, cells in _held_out(evaluations).items() if any(cells.values()) or heading in ALWAYS
    }
    explained = [words for heading, words in EXPLAINED.items() if heading in held_out]
    table = Table(
        title=one_line(f"self-play in {run.path}"),
        caption="left: training episodes (no signal: groups with equal rewards)\n"
        + "right: new checkpoint on held-out states"
        + f" ({'; '.join(explained)})" * bool(explained)
        + f"\nreward of play without words: {wordless_in_words(lines)}" * bool(lines),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for name in ("#", *OF_EPISODES, "no\nsignal", "\nsteps", *held_out, "play\n(s)", "train\n(s)"):
        table.add_column(name if "\n" in name else f"\n{name}", justify="right", no_wrap=True)
    for number, stages in sorted(run.state.iterations.items())[-newest if newest else None :]:
        cells = [""] * 6
        if played := run.state.played(number):
            signal = signal_of(played, run.state.converted(number))
            cells = [
                f"{played.mean_reward:.3f}",
                f"{played.agreement_rate:.1%}",
                f"{played.illegal_per_episode:.3f}",
                f"{played.messages_per_episode:.2f}",
                f"{signal.without}/{signal.groups}",
                "",
            ]
        if trained := run.state.trained(number):
            cells[-1] = "carried" if trained.carried else str(trained.steps)
        figures = [of_iteration[number] for of_iteration in held_out.values()]
        cells += ["" if one is None or one.value is None else f"{one.value:.3f}" for one in figures]
        cells += [f"{stages[stage].seconds:.0f}" if stage in stages else "" for stage in PLAY_AND_TRAIN]
        table.add_row(str(number), *cells)
    return table


def _held_out(evaluations: Mapping[int, Evaluated | None]) -> dict[str, dict[int, Interval | None]]:
    """Returns the figures on held-out states by column and iteration."""
    return {
        figure.heading: {number: found.interval(figure) if found else None for number, found in evaluations.items()}
        for figure in IN_TABLE
    }
