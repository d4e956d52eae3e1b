"""What a figure is: its name, what people read, and which way is better."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Measures = dict[str, tuple[float, float]]
"""Numerator and denominator by figure: a figure of many episodes is the ratio of the sums, so that states can be
resampled."""


@dataclass(frozen=True)
class Figure:
    """One thing that is measured of episodes.

    Attributes:
        label: its name in tables.
        better: which way is better, None where neither is in itself.
        share: it lies in [0, 1].
        chart: the title of its curve over iterations, "" where none is drawn.
        axis: what stands beside that curve's axis.
        note: what a reader of the curve must know, before "Means with 95 % intervals."
        mean: its denominator is 1 for each episode, so that it is a mean over episodes.
    """

    name: str
    label: str
    better: Literal["higher", "lower"] | None = None
    share: bool = False
    chart: str = ""
    axis: str = ""
    note: str = ""
    mean: bool = True
