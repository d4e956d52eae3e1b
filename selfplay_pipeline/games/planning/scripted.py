"""Scripted players: pure functions of one seat's knowledge.

The user tells its preferences in a short form (`[message] kids + yes - no; type park; budget 40`), which
`text.told_preferences` reads; after a rejection also its points. The agent plans with what it was told. The score is
linear in the weights of the preferences, so each told number of points is a linear equation for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from selfplay_pipeline.games.base import MESSAGE, ScriptedPlayer
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    MOST_WEIGHT,
    USER,
    AnyPreference,
    Array,
    Itinerary,
    Liking,
    OfCategory,
    Place,
    PlanningConfig,
    Points,
    Whole,
    itinerary_at,
    legs,
    miles_between,
    scores,
)
from selfplay_pipeline.games.planning.session import PlanningSession
from selfplay_pipeline.games.planning.text import brief, format_points, format_proposal, told_points, told_preferences
from selfplay_pipeline.games.planning.wordless import mean_rewards
from selfplay_pipeline.games.tagged_session import SeatView
from selfplay_pipeline.games.tags import ActionKind

MEAN_WEIGHT = (1 + MOST_WEIGHT) / 2
NOTHING = f"[{MESSAGE}] none"
"""Message that tells nothing."""
DRAWS = 60
"""Number of draws of preferences with which the silent agent plans."""
SEARCHES = 0.3
"""Chance that the random agent first searches."""


@dataclass(frozen=True)
class PlayerView(SeatView):
    """Knowledge of one player at the beginning of its turn.

    Attributes:
        places: Places of the city, for the agent.
        preferences: Own preferences, for the user; their weights are not to be used.
        proposals: All proposals.
        offers: Own points for each proposal, for the user.
        pending: Whether a proposal waits for an answer.
        searches: Number of searches since the agent's last other action.
    """

    places: tuple[Place, ...] = ()
    preferences: tuple[AnyPreference, ...] = ()
    proposals: tuple[Itinerary, ...] = ()
    offers: tuple[Points, ...] = ()
    pending: bool = False
    searches: int = 0
    rules: PlanningConfig = field(default_factory=PlanningConfig)


def player_view(session: PlanningSession, seat: int) -> PlayerView:
    """Returns the knowledge of `seat` in a running episode."""
    state, agent = session.state, seat == AGENT
    return PlayerView(
        seat=seat,
        places=state.places if agent else (),
        preferences=() if agent else state.preferences,
        proposals=tuple(session.proposals),
        offers=() if agent else tuple(state.points(each) for each in session.proposals),
        pending=session.pending is not None,
        searches=session.searches if agent else 0,
        history=session.known_history(seat),
        due=session.due,
        rules=session.config,
    )


@dataclass(frozen=True)
class Random:
    """Says nothing, searches at times, proposes random places and accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == USER:
            return "[accept]" if view.pending else NOTHING
        if view.says(False):
            return NOTHING
        if view.searches < view.rules.max_searches and rng.random() < SEARCHES:
            return random_search(view, rng)
        return format_proposal(random_itinerary(view, rng))


@dataclass(frozen=True)
class Silent(Random):
    """Says nothing; as the agent it proposes the best places by its own view and the rules."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT and not view.says(False):
            return format_proposal(best_itinerary(view))
        return super().act(view, rng)


@dataclass(frozen=True)
class Sharing:
    """Tells its preferences, rejects the first proposals and tells its points for them.

    As the agent it proposes the best places by all that it was told.
    """

    rejects: int = 3
    """Number of proposals that a user rejects."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return Silent().act(view, rng)
        if view.pending:
            return "[accept]" if self.agrees(view, rng) else "[reject]"
        if view.offers:
            return f"[{MESSAGE}] {format_points(view.offers[-1])}"
        return tell(view) if view.preferences else NOTHING

    def agrees(self, view: PlayerView, rng: np.random.Generator) -> bool:
        """Whether a user accepts the proposal that waits for its answer: the best one so far, after some rejections."""
        best = view.offers[-1].total >= max(each.total for each in view.offers)
        return len(view.offers) > (self.rejects if best else 2 * self.rejects)


def tell(view: PlayerView) -> str:
    """Returns the message that tells the user's preferences in the short form."""
    return f"[{MESSAGE}] " + "; ".join(map(brief, view.preferences))


def random_itinerary(view: PlayerView, rng: np.random.Generator) -> Itinerary:
    """Returns three random places."""
    first, second, third = (view.places[at].name for at in rng.permutation(len(view.places))[:3])
    return first, second, third


def random_search(view: PlayerView, rng: np.random.Generator) -> str:
    """Returns a search for the places of a random category that are near a random place."""
    one, other = (view.places[at] for at in rng.integers(len(view.places), size=2))
    return (
        f"[tool] Search(fields=[price], filters=[category == {one.category}], "
        f"sort_by=[distance_to({other.name})], limit={rng.integers(1, 4)})"
    )


# --- the agent's plan -----------------------------------------------------------------------------------------


def best_itinerary(view: PlayerView) -> Itinerary:
    """Returns the itinerary with the best expected score, given all that the agent knows."""
    wishes = told_wishes(view)
    if wishes:
        found = expected_scores(view, wishes)
    else:
        found = mean_rewards(view.places, view.rules, np.random.default_rng(0), DRAWS)
    return itinerary_at(view.places, int(np.nanargmax(found)))


def told_wishes(view: PlayerView) -> list[AnyPreference]:
    """Returns the preferences that the user told, each one once."""
    found: list[AnyPreference] = []
    for text in view.said(USER):
        found += [wish for wish in told_preferences(text) if wish not in found] if text.startswith("[message]") else []
    return found


def told_offers(view: PlayerView) -> list[tuple[Itinerary, Points]]:
    """Returns the points that the user told, each with the last proposal before its message."""
    found, made = list[tuple[Itinerary, Points]](), 0
    for seat, text in view.history:
        if seat == AGENT:
            made += text.startswith(f"[{ActionKind.PROPOSE}]")
        elif made and (points := told_points(text)) is not None:
            found.append((view.proposals[made - 1], points))
    return found


def expected_scores(view: PlayerView, wishes: Sequence[AnyPreference]) -> Array:
    """Returns the expected score of each itinerary, given the told preferences and the told points of proposals."""
    offers = told_offers(view)
    wishes, weights = _weights(view, wishes, offers)
    place, miles = {each.name: at for at, each in enumerate(view.places)}, miles_between(view.places)
    ways = [legs(miles, weight) for weight in range(1, MOST_WEIGHT + 1)]
    agreeing = [
        way
        for way in ways
        if all(
            points.legs == tuple(int(way[place[one], place[other]]) for one, other in pairwise(stops))
            for stops, points in offers
        )
    ]
    return scores([*zip(wishes, weights, strict=True)], view.places, np.mean(agreeing or ways, axis=0))


def _weights(
    view: PlayerView, wishes: Sequence[AnyPreference], offers: Sequence[tuple[Itinerary, Points]]
) -> tuple[list[AnyPreference], Array]:
    """Returns the preferences with their expected weights: the smallest change of the mean weights that agrees with all
    told points. Whether a category's absence costs points is read from them too."""
    place = {each.name: each for each in view.places}
    found, rows, sums = [*wishes], list[Array](), list[float]()
    whole = [at for at, wish in enumerate(wishes) if isinstance(wish, Whole)]
    for stops, points in offers:
        chosen = [place[name] for name in stops]
        each = np.array([wish.each(chosen) if isinstance(wish, Liking) else np.zeros(3) for wish in wishes])
        rows += [*each.T]
        sums += points.places
        for at, worth in zip(whole, points.whole, strict=False):
            wish = found[at]
            if isinstance(wish, OfCategory) and worth < 0:
                found[at] = wish = wish.model_copy(update={"penalize": True})
            factor = wish.all(chosen)[0, 1, 2] if isinstance(wish, Whole) else 0
            rows.append(factor * np.eye(len(wishes))[at])
            sums.append(worth)
    mean = np.full(len(wishes), MEAN_WEIGHT)
    if rows:
        matrix = np.array(rows)
        mean = mean + np.linalg.pinv(matrix) @ (np.array(sums) - matrix @ mean)
    return found, np.clip(mean, 1, MOST_WEIGHT)


SCRIPTED: Mapping[str, ScriptedPlayer] = {"random": Random(), "silent": Silent(), "sharing": Sharing()}
