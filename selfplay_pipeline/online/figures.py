"""Passes the evaluation's figures through verl, which only averages numbers over episodes."""

from __future__ import annotations

import math
from typing import Any

from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.figures import figures_of as all_figures
from selfplay_pipeline.metrics.figures import measure

RATIOS = tuple(name for name, figure in all_figures().items() if figure.below)
"""Figures that are ratios of sums: each is sent as a numerator and, named `per_…`, a denominator."""


def figures_of(record: EpisodeRecord, game: Game) -> dict[str, float]:
    """Returns the figures of `selfplay evaluate` for one episode, without `reward`, which verl adds itself."""
    figures: dict[str, float] = {}
    for name, (above, below) in measure(Measured(game, record, range(len(game.roles)))).items():
        figures[name] = float(above)
        if name in RATIOS:
            figures[f"per_{name}"] = float(below)
    del figures["reward"]
    return figures


def to_line(step: int, metrics: dict[str, Any], held_out: dict[str, float] | None = None) -> dict[str, Any]:
    """Returns a step's metrics as a line of metrics.jsonl.

    verl's own metrics are kept, except those of validations. Figures of the episodes just played are named
    `selfplay/…`.

    Args:
        step: Number of the step.
        metrics: verl's metrics of the step.
        held_out: Figures of the step's validation, if there was one; they are named `held_out/…`.
    """
    line: dict[str, Any] = {"step": step}
    for name, value in sorted(metrics.items()):
        if isinstance(value, int | float) and math.isfinite(value) and not name.startswith("val-"):
            line[name] = value
    line |= {f"held_out/{name}": value for name, value in (held_out or {}).items()}
    for place in ("selfplay", "held_out"):
        for name in RATIOS:
            below = line.pop(f"{place}/per_{name}", None)
            if below is not None:
                line[f"{place}/{name}"] = line[f"{place}/{name}"] / below if below else None
    return line
