"""Figures of an evaluation as numbers that verl can average over episodes."""

from __future__ import annotations

import math
from typing import Any

from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.figures import figures_of as figures_of_games
from selfplay_pipeline.metrics.figures import measure

BELOW = "per_"
"""Prefix for denominators in metrics, since verl averages numerator and denominator of a ratio separately."""


def figures_of(record: EpisodeRecord, game: Game) -> dict[str, float]:
    """Returns the figures of `selfplay evaluate` for one episode, without `reward`, which verl adds itself."""
    figures, defined = dict[str, float](), figures_of_games(game)
    for name, (above, below) in measure(Measured(game, record, range(len(game.roles)))).items():
        figures[name] = float(above)
        if defined[name].below:
            figures[f"{BELOW}{name}"] = float(below)
    del figures["reward"]
    return figures


def to_line(step: int, metrics: dict[str, Any], held_out: dict[str, float] | None = None) -> dict[str, Any]:
    """Returns a step's metrics as a line of metrics.jsonl.

    verl's own metrics are kept, except metrics of validations. Figures of the episodes just played are named
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
    for name in [*line]:
        place, _, figure = name.partition(f"/{BELOW}")
        if place in ("selfplay", "held_out") and f"{place}/{figure}" in line:
            below = line.pop(name)
            line[f"{place}/{figure}"] = line[f"{place}/{figure}"] / below if below else None
    return line
