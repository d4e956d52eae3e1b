"""Episode of planning: a user speaks with an agent, who may search among the places and proposes three of them.

The turns are those of `games/tagged_session.py`; the user is seat 0 and speaks first. Besides, a search is a step of
the agent's own turn: it is legal, keeps the turn, and its result is told to the agent alone. It counts as a turn, and
after `max_searches` of them in a row the agent must speak or propose. A query with a mistake is an illegal turn, whose
error says in one line what is wrong.

Both theorems of `tagged_session.py` hold with the agent as the proposer, since the user observes no search, and a
result is a function of the agent's own view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.base import Choice, ParseError, Part
from selfplay_pipeline.games.planning.catalogue import short, show
from selfplay_pipeline.games.planning.draw import PLACES
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    ROLES,
    STOPS,
    TRAVEL,
    USER,
    Itinerary,
    PlanningConfig,
    PlanningState,
    Whole,
    check_itinerary,
)
from selfplay_pipeline.games.planning.search import EXAMPLE, SEARCH, query_in, search, search_form
from selfplay_pipeline.games.planning.text import (
    FORM,
    ErrorKind,
    brief,
    features_of,
    format_points,
    format_proposal,
    parse_itinerary,
    position_of,
)
from selfplay_pipeline.games.tagged_session import Action, TaggedGame, TaggedSession, parse_tagged
from selfplay_pipeline.games.tags import ActionKind, tagged
from selfplay_pipeline.games.turn_session import Move

NOT_OF = {USER: (ActionKind.PROPOSE,), AGENT: (ActionKind.ACCEPT, ActionKind.REJECT)}
"""Actions that a role may not take."""


class PlanningSession(TaggedSession[Itinerary]):
    """One episode.

    Attributes:
        proposals: All proposals.
        searches: Number of searches since the agent's last other action.
    """

    state: PlanningState
    config: PlanningConfig

    def __init__(self, game: TaggedGame, state: PlanningState) -> None:
        super().__init__(game, state)
        self.proposals: list[Itinerary] = []
        self.searches = 0

    def act(self, seat: int, text: str) -> Move:
        query = query_in(text)
        if query is None:
            move = super().act(seat, text)
            self.proposals += [check_itinerary(move.decision, self.state)] if move.decision else []
            self.searches = 0
            return move
        if seat == USER:
            raise ParseError(ErrorKind.NOT_YOURS, "the agent alone may search")
        if self.searches >= self.config.max_searches:
            raise ParseError(ErrorKind.NOT_NOW, "no more searches: speak or propose")
        result = search(query, self.state.places)
        self.searches += 1
        return Move({AGENT: result}, SEARCH)

    def parse(self, text: str) -> Action[Itinerary]:
        kind, _ = tagged(text)
        if kind in NOT_OF[self.seat]:
            raise ParseError(ErrorKind.NOT_YOURS, f"the {ROLES[1 - self.seat]} alone may {kind}")
        return parse_tagged(text, lambda body: parse_itinerary(body, self.state.index))

    def written(self, proposal: Itinerary) -> str:
        return format_proposal(proposal)

    def shown(self, seat: int) -> dict[str, Any]:
        return {
            "agent": seat == AGENT,
            "places": [] if seat == USER else [self._place(name) for name in self.state.index],
            "preferences": [] if seat == AGENT else [wish.text for wish in self.state.preferences] + [TRAVEL],
            "brief": [] if seat == AGENT else [brief(wish) for wish in self.state.preferences],
            "max_length": self.config.max_length,
            "max_searches": self.config.max_searches,
            "query": EXAMPLE,
            "form": FORM,
        }

    def about(self, proposal: Itinerary | None) -> dict[str, Any]:
        speaker: dict[str, Any] = {"speaker": ROLES[self.seat], "stops": [], "wholes": [], "told": ""}
        if proposal is None:
            return speaker
        points, miles = self.state.points(proposal), self.state.miles
        first, second, third = self.state.at(proposal)
        wholes = [wish.text for wish in self.state.preferences if isinstance(wish, Whole)]
        return speaker | {
            "points": points,
            "told": format_points(points),
            "total": points.total,
            "stops": [self._place(name) for name in proposal],
            "miles": [float(miles[first, second]), float(miles[second, third])],
            "wholes": [*zip(wholes, points.whole, strict=True)],
        }

    def example(self) -> dict[str, Any]:
        return {"choices": [choice.form.strip() for choice in self.choices()]}

    def form(self) -> str:
        first, second, third = [*self.state.index][:STOPS]
        return format_proposal((first, second, third))

    def parts(self) -> list[Part]:
        names = (*self.state.index,)
        return [Part(f"place {stop + 1}", names, PLACES) for stop in range(STOPS)] if self.seat == AGENT else []

    def selected(self, numbers: Sequence[int]) -> str:
        names = [*self.state.index]
        first, second, third = (names[number] for number in numbers)
        return format_proposal((first, second, third))

    def choices(self) -> list[Choice]:
        kinds = {kind.value for kind in NOT_OF[self.seat]}
        found = [choice for choice in super().choices() if choice.action not in kinds]
        can_search = self.seat == AGENT and self.searches < self.config.max_searches
        return [*found, *([search_form(self.state.places)] if can_search else [])]

    def _place(self, name: str) -> dict[str, Any]:
        place = self.state.places[self.state.index[name]]
        return {
            "name": name,
            "category": place.category,
            "price": place.price,
            "at": position_of(place),
            "miles": self.state.miles[self.state.index[name]],
            "features": features_of(place),
            "brief": " ".join(f"{short(kind)} {show(value)}" for kind, value in place.features.items()),
        }
