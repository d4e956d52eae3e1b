"""Type of a figure: its name, label and formula, and the direction that is better."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Measures = dict[str, tuple[float, float]]
"""Numerator and denominator by figure. A figure of many episodes is the ratio of the sums, so that states can be
resampled."""
Formula = Callable[[Any], float]
"""Function of a `games.measured.Measured`, which is an episode with the seats to measure."""


@dataclass(frozen=True)
class Figure:
    """One quantity that is measured in episodes. Tables, charts and summaries all read this definition.

    Attributes:
        label: Label in tables and on axes.
        above: Numerator in one episode.
        below: Denominator in one episode; None for a mean over episodes.
        better: Direction that is better; None if neither is better in itself.
        unit: Unit of the value; `share` and `reward` lie in [0, 1].
        chart: Title of the curve over the iterations of a run; "" for no curve.
        part_of: Title of the chart that stacks this figure with the other parts of a whole; "" without such a chart.
        note: Text that explains the curve to readers, before "Means with 95 % intervals."
        summary: Key in the summary of a file of episodes, and so in `metrics.jsonl` and the loggers; "" if they omit
            the figure.
        everyone: Whether the summary measures all seats, not only the policy's.
        reads: What a game must read in messages to have the figure: their questions, or also the facts in them.
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
    reads: Literal["", "questions", "facts"] = ""

    def parts(self, episode: Any) -> tuple[float, float]:
        """Returns the numerator and denominator in one episode."""
        return self.above(episode), 1 if self.below is None else self.below(episode)

    def text(self, value: float) -> str:
        """Returns a value as displayed text, without its unit."""
        return f"{value:.1%}" if self.unit == "share" else f"{value:.3f}"
