"""Tables of values and of a split, for the terminal and the report page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.bargaining.rules import ITEMS, BargainingState, Split, check_split, rest, shares
from selfplay_pipeline.games.bargaining.text import format_items
from selfplay_pipeline.games.drawing import BAD, EpisodeDrawing, StateDrawing, Table, drawn_decision

SEATS = ("seat 0", "seat 1")


def draw_state(state: BargainingState) -> StateDrawing:
    """Returns tables of each player's view, and of both players' values side by side."""
    return StateDrawing(
        views=[_table(state, "sees", ["value"], [state.values[seat]], seat) for seat in (0, 1)],
        whole=[_table(state, "values", list(SEATS), state.values, None)],
    )


def draw_view(state: BargainingState, seat: int) -> Table:
    """Returns a table of the items with their values to one player."""
    return _table(state, "your values", ["value of each"], [state.values[seat]], seat)


def draw_episode(state: BargainingState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
    """Returns tables of the agreed split (or else the last proposed one) and of the nearest best split."""
    final = drawn_decision(turns, decision)
    if not final:
        return EpisodeDrawing(about_whole="Both players' values (nothing was proposed)")
    split = check_split(final, state.counts)
    worth = state.worth(split)
    return EpisodeDrawing(
        decision="; ".join(f"{SEATS[seat]}: {format_items(split[seat])} (worth {worth[seat]})" for seat in (0, 1)),
        about_whole="Both players' values, and what each gets",
        results=[_result(state, split, nearest_best(state, split), agreed=decision is not None)],
    )


def nearest_best(state: BargainingState, split: Split) -> Split:
    """Returns the split with the best sum that has the most items in common with `split`."""
    all_splits = [(share, rest(state.counts, share)) for share in shares(state.counts)]
    best = [each for each in all_splits if sum(state.worth(each)) == state.best]
    return min(best, key=lambda each: sum(abs(mine - other) for mine, other in zip(each[0], split[0], strict=True)))


def _table(
    state: BargainingState, title: str, heads: list[str], values: Sequence[Sequence[int]], seat: int | None
) -> Table:
    rows = zip(state.counts, *values, strict=True)
    cells = [[str(number) for number in row] for row in rows]
    return Table(title=title, seat=seat, columns=["count", *heads], rows=list(ITEMS), cells=cells)


def _result(state: BargainingState, split: Split, best: Split, *, agreed: bool) -> Table:
    """Returns a table of the items by player in both splits; the last rows give each split's worth to each player, and
    the sum.
    """
    columns = [*split, *best]
    worth = [*state.worth(split), *state.worth(best)]
    rows = [[str(share[item]) for share in columns] for item in range(len(ITEMS))]
    together = sum(worth[:2])
    return Table(
        title="agreed" if agreed else "last proposal, not agreed",
        columns=[*SEATS, *(f"best: {seat}" for seat in SEATS)],
        rows=[*ITEMS, "worth", "together"],
        cells=[*rows, [str(value) for value in worth], [str(together), "", str(state.best), ""]],
        cells_that_are={BAD: [(len(ITEMS) + 1, 0)] if together < state.best else []},
    )
