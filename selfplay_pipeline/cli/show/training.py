"""Closing tables and lines of `train`, `imitate` and `train-online`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.metrics.figures import figures_of
from selfplay_pipeline.train.offline import TrainResult
from selfplay_pipeline.train.online import OnlineResult
from selfplay_pipeline.train.saves import read_lines

LOSS = "selfplay/loss"
"""Name of the metric of a supervised training's loss."""
LEAST_FALL = 0.1
"""Smallest fall of the loss, as a share of the first loss, of a training that learned something."""


def show_training(result: TrainResult) -> None:
    """Print the result of a training, as the last lines of `train`."""
    Terminal().print(
        f"{result.steps} steps on {result.groups} groups ({result.groups_without_signal} without signal) in "
        f"{result.seconds_total:.0f} s\n{where(result.checkpoint, result.metrics_path)}",
        soft_wrap=True,
    )


def show_imitation(result: TrainResult) -> None:
    """Print the result of a training, as the last lines of `imitate`."""
    before, *after = [f"{loss:.4f}" for loss in result.held_out_losses] or [""]
    losses = f"held-out loss in nats a token: {before} before, {', '.join(after)} after each epoch\n" if after else ""
    Terminal().print(
        f"{result.updates} steps on {result.rows} rows in {result.seconds_total:.0f} s\n{losses}"
        f"{where(result.checkpoint, result.metrics_path)}",
        soft_wrap=True,
    )


def barely_fell(result: TrainResult) -> str | None:
    """Returns a warning if the loss of a supervised training fell by less than `LEAST_FALL`, else None."""
    kind, losses = "held-out loss", list(result.held_out_losses)
    if not losses:
        kind, losses = "loss", [line[LOSS] for line in read_lines(result.metrics_path) if LOSS in line]
    if len(losses) < 2 or losses[-1] < (1 - LEAST_FALL) * losses[0]:
        return None
    remedy = "more --epochs or a higher" if losses[-1] <= losses[0] else "fewer --epochs or a lower"
    return (
        f"the {kind} went from {losses[0]:.4f} to {losses[-1]:.4f} nats a token, which is hardly a fall: unless the "
        f"model knew such episodes before, give {remedy} --learning-rate, and another --output"
    )


def where(checkpoint: Path, metrics: Path) -> str:
    """Returns the lines that name a training's output files."""
    return one_line(f"checkpoint: {checkpoint}") + "\n" + one_line(f"metrics:    {metrics}")


def show_online(result: OnlineResult, game: Game) -> None:
    """Print the closing table and lines of `train-online`."""
    table = Table(title=f"{result.steps} steps on {result.episodes} episodes", box=None, padding=(0, 2, 0, 0))
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
