"""The type of a figure: name, words for people, formula, and which direction is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Measures = dict[str, tuple[float, float]]
"""Numerator and denominator by figure: a figure of many episodes is the ratio of the sums, so that states can be
resampled."""
Formula = Callable[[Any], float]
"""Takes an episode and the seats of it that are measured: a `games.measured.Measured`."""


@dataclass(frozen=True)
class Figure:
    """One thing that is measured of episodes. This is its one definition; whoever shows it reads it here.

    Attributes:
        label: its name in tables and on axes.
        above: its numerator in one episode.
        below: its denominator; None for a mean over episodes.
        better: which way is better, None where neither is in itself.
        unit: `share` and `reward` lie in [0, 1].
        chart: the title of its curve over iterations, "" where none is drawn.
        part_of: the title of a chart that stacks this figure on others, with which it adds up to a whole; "" for none.
        note: what a reader of the curve must know, before "Means with 95 % intervals."
        summary: its key in the summary of a file of episodes, "" where that leaves it out.
        everyone: in such a summary it is of all seats, not of the policy's alone.
    """

    name: str
    label: str
    above: Formula
    below: Formula | None = None
    better: Literal["higher", "lower"] | None = None
    unit: Literal["number", "share", "reward", "nats"] = "number"
    chart: str = ""
    part_of: str = ""
    note: str = ""
    summary: str = ""
    everyone: bool = False

    def parts(self, episode: Any) -> tuple[float, float]:
        """Numerator and denominator in one episode."""
        return self.above(episode), 1 if self.below is None else self.below(episode)

    def text(self, value: float) -> str:
        """A value for people, without its unit."""
        return f"{value:.1%}" if self.unit == "share" else f"{value:.3f}"
