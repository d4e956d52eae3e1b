"""What a game gives to be drawn: tables of short texts. The terminal and the page draw any game's in their own way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, Field

Place = tuple[int, int]
"""Row and column of a cell, from 0."""

UNKNOWN = "·"
"""Stands in a cell that no seat knows."""
HIDDEN, GOOD, BAD = "hidden", "good", "bad"
"""What a cell can be said to be in `Table.cells_that_are`: not known to the seat, better or worse than could be."""


class Table(BaseModel):
    """One table.

    Attributes:
        title: what stands above it, without the name of its seat's player.
        seat: whose knowledge it shows; None for a table that no player sees.
        columns, rows: their heads; a head may be short if its full text stands in `full`.
        cells: texts by row and column.
        cells_that_are: places by `HIDDEN`, `GOOD` or `BAD`.
        full: full texts by short head.
        marked: whether `Drawing.marks` are shown in it.
    """

    title: str
    seat: int | None = None
    columns: list[str]
    rows: list[str]
    cells: list[list[str]]
    cells_that_are: dict[str, list[Place]] = {}
    full: dict[str, str] = {}
    marked: bool = False


class StateDrawing(BaseModel):
    """What all episodes of a state have in common.

    Attributes:
        views: what the seats know, in the order of the seats.
        whole: all that there is to know, which no player sees.
    """

    views: list[Table]
    whole: list[Table] = []


class EpisodeDrawing(BaseModel):
    """What one episode made of its state.

    Attributes:
        decision: what was agreed or proposed last, in a few words; "" if nothing was.
        marks: places in the state's marked tables by what they are, of two kinds at most, such as `proposed`.
        about_whole: what stands above the state's `whole` and `results`.
        results: further tables: what the decision brings.
        notes: what is to be said of each turn, "" where nothing is; empty if the game says nothing of turns.
    """

    decision: str = ""
    marks: Annotated[dict[str, list[Place]], Field(max_length=2)] = {}
    about_whole: str = ""
    results: list[Table] = []
    notes: list[str] = []


def as_text(title: str, values: Mapping[str, Any]) -> Table:
    """Returns a table of values as JSON, each behind its name; for games without a drawing of their own."""
    cells = [[json.dumps(value, ensure_ascii=False)] for value in values.values()]
    return Table(title=title, columns=[""], rows=[*values], cells=cells)
