"""Figures of an episode of this game, and reference lines for its rewards. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.losses import loss_figures
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.planning.rules import AGENT, USER, PlanningState, Points, check_itinerary
from selfplay_pipeline.games.planning.scripted import best_itinerary, player_view
from selfplay_pipeline.games.planning.search import SEARCH
from selfplay_pipeline.games.planning.text import brief, told_preferences
from selfplay_pipeline.games.tags import PROPOSALS


def references(states: Sequence[PlanningState]) -> dict[str, list[float]]:
    """Returns the mean reward of all itineraries, and the best one, on each state."""
    return {"random": [float(np.nanmean(state.rewards)) for state in states], "best": [1.0] * len(states)}


def _points(episode: Measured) -> Points:
    """Returns the points of the agreed itinerary; none without an agreement."""
    if not episode.agreed:
        return Points((), (), ())
    found: Points = episode.state.points(check_itinerary(episode.record.outcome.proposal, episode.state))
    return found


def _told(episode: Measured) -> int:
    """Returns the number of the user's preferences that it told truly."""
    said = [turn.text for turn in episode.turns if turn.action == MESSAGE and turn.seat == USER]
    told = {brief(wish) for text in said for wish in told_preferences(text)}
    return sum(brief(wish) in told for wish in episode.state.preferences)


def _wishes(episode: Measured) -> int:
    return len(episode.state.preferences) if USER in episode.seats else 0


def _searches(episode: Measured) -> int:
    return sum(turn.action == SEARCH for turn in episode.turns)


FIGURES = (
    PROPOSALS,
    Figure("searches", "searches an episode", _searches, chart="Searches"),
    Figure("told", "own preferences that the user told", _told, _wishes, unit="share"),
    Figure("place_points", "points for features", lambda e: sum(_points(e).places), better="higher", chart="Points"),
    Figure("travel_points", "points for travel", lambda e: sum(_points(e).legs), better="higher"),
    Figure("whole_points", "points for whole days", lambda e: sum(_points(e).whole), better="higher"),
    *loss_figures(
        lambda session: best_itinerary(player_view(session, AGENT)),
        ("lost to telling", "lost to planning", "lost to agreement"),
    ),
)
