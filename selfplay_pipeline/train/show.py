"""The closing lines of `train`."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.core.terminal import Terminal
from selfplay_pipeline.core.terminal.harmless import one_line
from selfplay_pipeline.train.run import TrainResult


def show_training(result: TrainResult) -> None:
    """The closing lines of `train`."""
    Terminal().print(
        f"{result.steps} steps on {result.groups} groups ({result.groups_without_signal} without signal) in "
        f"{result.seconds_total:.0f} s\n{where(result.checkpoint, result.metrics_path)}",
        soft_wrap=True,
    )


def show_imitation(result: TrainResult) -> None:
    """The closing lines of `imitate`."""
    before, *after = [f"{loss:.4f}" for loss in result.held_out_losses] or [""]
    losses = f"held-out loss in nats a token: {before} before, {', '.join(after)} after each epoch\n" if after else ""
    Terminal().print(
        f"{result.updates} steps on {result.rows} rows in {result.seconds_total:.0f} s\n{losses}"
        f"{where(result.checkpoint, result.metrics_path)}",
        soft_wrap=True,
    )


def where(checkpoint: Path, metrics: Path) -> str:
    """The lines that say where a training has written its results."""
    return one_line(f"checkpoint: {checkpoint}") + "\n" + one_line(f"metrics:    {metrics}")
