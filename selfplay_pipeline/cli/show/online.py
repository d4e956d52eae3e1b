"""Closing table and lines of `train-online`."""

from __future__ import annotations

from rich.table import Table

from selfplay_pipeline.cli.show.training import where
from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.metrics.figures import figures_of
from selfplay_pipeline.train.online import OnlineResult


def show_online(result: OnlineResult, game: Game) -> None:
    """Print the closing table and lines of `train-online`."""
    table = Table(title=f"{result.steps} steps on {result.games} episodes", box=None, padding=(0, 2, 0, 0))
    for name in ("held-out states", "before", "after"):
        table.add_column(name, justify="left" if name == "held-out states" else "right")
    for name, figure in figures_of(game).items():
        if name.startswith("illegal_"):
            continue
        if result.before.get(name) is not None and result.after.get(name) is not None:
            table.add_row(figure.label, f"{result.before[name]:.3f}", f"{result.after[name]:.3f}")
    show = Terminal()
    show.print(table)
    times = f"{result.seconds_total:.0f} s"
    if result.seconds_to_first_step is not None and result.seconds_per_step is not None:
        times += f": {result.seconds_to_first_step:.0f} s before the first step, {result.seconds_per_step:.1f} s a step"
    show.print(f"{times}\n{where(result.checkpoint, result.metrics_path)}", soft_wrap=True)
