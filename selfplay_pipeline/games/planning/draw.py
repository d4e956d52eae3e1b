"""Tables of the places and of the user's preferences, for the terminal and the report page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.drawing import BAD, EpisodeDrawing, StateDrawing, Table, drawn_decision
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    TRAVEL,
    USER,
    Itinerary,
    Liking,
    PlanningState,
    Whole,
    check_itinerary,
)
from selfplay_pipeline.games.planning.text import features_of, position_of

PLACES = "the places"
"""Title of the agent's table."""


def draw_state(state: PlanningState) -> StateDrawing:
    """Returns tables of each seat's view, and of the weights that no player sees."""
    weights = [(wish.text, wish.weight) for wish in state.preferences] + [(TRAVEL, state.travel)]
    whole = Table(
        title="weights",
        columns=["weight"],
        rows=[text for text, _ in weights],
        cells=[[str(weight)] for _, weight in weights],
    )
    return StateDrawing(views=[_wishes(state), _places(state)], whole=[whole])


def draw_view(state: PlanningState, seat: int) -> Sequence[Table]:
    """Returns the table of what a seat sees at the beginning."""
    return [_wishes(state, "your preferences") if seat == USER else _places(state, PLACES)]


def draw_episode(state: PlanningState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
    """Returns tables of the agreed itinerary (or else the last proposed one) and of a best one."""
    final = drawn_decision(turns, decision)
    if not final:
        return EpisodeDrawing(about_whole="All weights (nothing was proposed)")
    chosen = check_itinerary(final, state)
    title = "agreed" if decision is not None else "last proposal, not agreed"
    return EpisodeDrawing(
        decision=", ".join(chosen),
        about_whole="All weights, and the points of the chosen places",
        results=[_result(state, chosen, title), _result(state, state.best_itinerary, "a best day")],
    )


def _wishes(state: PlanningState, title: str = "sees") -> Table:
    texts = [*(wish.text for wish in state.preferences), TRAVEL]
    about = ["each place" if isinstance(wish, Liking) else "the day" for wish in state.preferences] + ["the way"]
    return Table(title=title, seat=USER, columns=["points for"], rows=texts, cells=[[kind] for kind in about])


def _places(state: PlanningState, title: str = "sees") -> Table:
    return Table(
        title=title,
        seat=AGENT,
        columns=["category", "price", "position in miles east and north", "features"],
        rows=[place.name for place in state.places],
        cells=[[place.category, f"${place.price}", position_of(place), features_of(place)] for place in state.places],
    )


def _result(state: PlanningState, chosen: Itinerary, title: str) -> Table:
    points = state.points(chosen)
    first, second, third = chosen
    rows = [
        (first, points.places[0]), (f"to {second}", points.legs[0]), (second, points.places[1]),
        (f"to {third}", points.legs[1]), (third, points.places[2]),
        *zip((wish.text for wish in state.preferences if isinstance(wish, Whole)), points.whole, strict=True),
        ("together", points.total),
    ]  # fmt: skip
    best = points.total == state.worst + state.span
    return Table(
        title=title,
        columns=["points"],
        rows=[text for text, _ in rows],
        cells=[[str(worth)] for _, worth in rows],
        cells_that_are={} if best else {BAD: [(len(rows) - 1, 0)]},
    )
