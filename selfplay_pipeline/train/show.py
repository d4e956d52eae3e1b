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


def where(checkpoint: Path, metrics: Path) -> str:
    """The lines that say where a training has written its results."""
    return one_line(f"checkpoint: {checkpoint}") + "\n" + one_line(f"metrics:    {metrics}")
