"""Closing lines of `train` and `imitate`."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.train.offline import TrainResult
from selfplay_pipeline.train.saves import read_lines

LOSS = "selfplay/loss"
"""Name of the metric of a supervised training's loss."""
LEAST_FALL = 0.1
"""Smallest fall of the loss, as a share of the first loss, of a training that learned something."""


def show_training(result: TrainResult) -> None:
    """Print the closing lines of `train`."""
    Terminal().print(
        f"{result.steps} steps on {result.groups} groups ({result.groups_without_signal} without signal) in "
        f"{result.seconds_total:.0f} s\n{where(result.checkpoint, result.metrics_path)}",
        soft_wrap=True,
    )


def show_imitation(result: TrainResult) -> None:
    """Print the closing lines of `imitate`."""
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
