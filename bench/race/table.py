"""Figures of the race, and their table. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.metrics.bootstrap import Interval

Side = Literal["ours", "trl"]
SIDES: tuple[Side, Side] = ("ours", "trl")


class Figures(BaseModel):
    """Cost of one side for one seed; times are wall-clock seconds.

    Attributes:
        seconds: Seconds from the start of the command to its end.
        playing: Seconds of play.
        in_steps: Seconds in training steps.
        episodes: Number of episodes played.
        rows: Number of rows trained on, each once in an epoch.
        steps: Number of optimizer steps.
        processor: Processor seconds of all its processes together.
        peak_gb: Peak memory of all its processes together; shared memory counts once.
        looking: CPU seconds of measuring the memory while the command ran.
        load: Mean number of processes that wanted a core in the minute before the start; above 0.5 the machine was
            busy.
        checkpoint: Folder of the last checkpoint.
        parts: Seconds of the stages, and of the parts of steps by verl's names, if known.
        packages: Versions of packages that differ from ours.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    seconds: float
    playing: float
    in_steps: float
    episodes: int
    rows: int
    steps: int
    processor: float
    peak_gb: float
    looking: float
    load: float
    checkpoint: str
    parts: dict[str, float] = {}
    packages: dict[str, str] = {}

    @property
    def rest(self) -> float:
        """Seconds neither in play nor in steps: starting, loading, converting, saving, ending."""
        return self.seconds - self.playing - self.in_steps

    @property
    def episodes_per_second(self) -> float:
        """Episodes per second of play."""
        return self.episodes / self.playing


class Rise(BaseModel):
    """Held-out reward minus the warm start's, mean of the seeds, paired by state."""

    ours: Interval
    trl: Interval
    difference: Interval
    """Ours minus TRL."""


class Row(NamedTuple):
    """A line of the table; the ratio is ours ÷ TRL."""

    name: str
    ours: str
    trl: str
    ratio: str


COSTS: Mapping[str, tuple[Callable[[Figures], float], int]] = {
    "wall time, s": (lambda side: side.seconds, 1),
    "processor time, s": (lambda side: side.processor, 1),
    "playing, s": (lambda side: side.playing, 1),
    "training steps, s": (lambda side: side.in_steps, 1),
    "rest, s": (lambda side: side.rest, 1),
    "rest, % of wall time": (lambda side: 100 * side.rest / side.seconds, 1),
    "episodes a second while playing": (lambda side: side.episodes_per_second, 1),
    "peak memory, GB": (lambda side: side.peak_gb, 2),
    "rows trained": (lambda side: side.rows, 0),
    "training steps, s a row": (lambda side: side.in_steps / side.rows if side.rows else math.nan, 2),
    "wall time, s a row": (lambda side: side.seconds / side.rows if side.rows else math.nan, 2),
    "optimiser steps": (lambda side: side.steps, 0),
}
"""Function and number of decimals of each figure of a side."""


def rows(figures: Mapping[Side, Sequence[Figures]], rises: Mapping[str, Rise]) -> list[Row]:
    """Returns the lines of the table.

    Args:
        figures: Figures of each seed, by side.
        rises: Rises by sampling mode.
    """
    found = []
    for name, (take, digits) in COSTS.items():
        each = [[take(seed) for seed in figures[side]] for side in SIDES]
        spreads, means = [_spread(values, digits) for values in each], [_mean(values) for values in each]
        found.append(Row(name, spreads[0], spreads[1], _ratio(means[0], means[1])))
    minutes = {side: _mean([seed.seconds for seed in figures[side]]) / 60 for side in SIDES}
    for mode, rise in rises.items():
        ours, trl = rise.ours, rise.trl
        found.append(Row(f"{mode} reward, rise", f"{ours:+}", f"{trl:+}", _ratio(ours.value, trl.value)))
        ours, trl = ours.scaled(1 / minutes["ours"]), trl.scaled(1 / minutes["trl"])
        found.append(Row(f"{mode} reward, rise a minute", f"{ours:+}", f"{trl:+}", _ratio(ours.value, trl.value)))
    return found


def table(figures: Mapping[Side, Sequence[Figures]], rises: Mapping[str, Rise]) -> str:
    """Returns the table in Markdown, followed by the paired differences and a breakdown of our time."""
    lines = [
        f"| mean of {len(figures['ours'])} seeds (least to most), or [95 % interval] | ours | TRL | ours ÷ TRL |",
        "|---|---|---|---|",
    ]
    lines += [f"| {' | '.join(row)} |" for row in rows(figures, rises)]
    differences = ", ".join(f"{mode} {rise.difference:+}" for mode, rise in rises.items())
    parts = ", ".join(
        f"{name} {_mean([seed.parts.get(name, 0.0) for seed in figures['ours']]):.1f}"
        for name in figures["ours"][0].parts
    )
    if differences:
        lines += ["", f"Held-out reward, ours minus TRL, paired by state: {differences}."]
    return "\n".join([*lines, "", f"Seconds of our stages and of parts of our steps, mean: {parts}."]) + "\n"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(values: Sequence[float], digits: int) -> str:
    mean, least, most = (f"{value:.{digits}f}" for value in (_mean(values), min(values), max(values)))
    return mean if least == most else f"{mean} ({least} to {most})"


def _ratio(ours: float | None, trl: float | None) -> str:
    """Returns the ratio as text; a dash unless both values are above 0, since other ratios of rises say nothing."""
    return f"{ours / trl:.2f}" if ours is not None and trl is not None and ours > 0 < trl else "–"
