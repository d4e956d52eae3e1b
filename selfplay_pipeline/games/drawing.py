"""Tables of short texts that show a state or an episode; the terminal and the page render them for any game."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field

Place = tuple[int, int]
"""Row and column of a cell, from 0."""

UNKNOWN = "·"
"""Text of a cell that no seat sees."""
HIDDEN, GOOD, BAD = "hidden", "good", "bad"
"""Keys of `Table.cells_that_are`: cells that the seat does not see, cells better than in the optimum, and worse ones.
"""


class Table(BaseModel):
    """One table.

    Attributes:
        title: Title, without the name of the seat's player.
        seat: Seat whose knowledge the table shows; None for a table that no player sees.
        columns, rows: Headings; a heading may be short if `full` has its full text.
        cells: Texts by row and column.
        cells_that_are: Places of cells by `HIDDEN`, `GOOD` or `BAD`.
        full: Full texts by short heading.
        marked: Whether the table shows `EpisodeDrawing.marks`.
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
    """Tables that all episodes of a state have in common.

    Attributes:
        views: Knowledge of each seat, in the order of the seats.
        whole: The complete state, which no player sees.
    """

    views: list[Table]
    whole: list[Table] = []


class EpisodeDrawing(BaseModel):
    """Tables and remarks on one episode.

    Attributes:
        decision: Short text of the decision that was agreed, or else proposed last; "" if there is none.
        marks: Places in the state's marked tables by label, such as `proposed`; two labels at most.
        about_whole: Heading above the state's `whole` and `results`.
        results: Further tables, which show the result of the decision.
        notes: Remark on each turn, "" for a turn without one; empty if the game makes no remarks.
    """

    decision: str = ""
    marks: Annotated[dict[str, list[Place]], Field(max_length=2)] = {}
    about_whole: str = ""
    results: list[Table] = []
    notes: list[str] = []


def as_text(title: str, values: Mapping[str, Any]) -> Table:
    """Returns a table with one row per value, as its name and JSON; for games without their own drawing."""
    cells = [[json.dumps(value, ensure_ascii=False)] for value in values.values()]
    return Table(title=title, columns=[""], rows=[*values], cells=cells)


def drawn_decision(turns: Sequence[Any], decision: Any) -> Any:
    """Returns the agreed decision, or else the one proposed last; None if nothing was proposed."""
    return decision or next((turn.proposal for turn in reversed(turns) if turn.proposal), None)
