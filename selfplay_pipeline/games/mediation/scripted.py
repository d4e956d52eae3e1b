"""Scripted players: pure functions of one seat's knowledge.

As a user, `sharing` lists its flights and what their meetings cost (`[message] 0 9 1 4`), which `text.told_costs`
reads; after a proposal, its points for price and arrival instead. The agent plans with what it was told.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.base import MESSAGE, ScriptedPlayer
from selfplay_pipeline.games.mediation.rules import (
    AGENT,
    MOST_ARRIVAL_PREF,
    MOST_IMPORTANT,
    MOST_PRICE_PREF,
    PRICES,
    USERS,
    Costs,
    Event,
    Flight,
    MediationConfig,
    Pair,
    User,
    clashes,
)
from selfplay_pipeline.games.mediation.session import MediationSession
from selfplay_pipeline.games.mediation.states import mean_prices
from selfplay_pipeline.games.mediation.text import format_costs, format_proposal, told_costs, told_offer
from selfplay_pipeline.games.mediation.wordless import mean_rewards
from selfplay_pipeline.games.tags import ActionKind

MEAN_IMPORTANCE = (1 + MOST_IMPORTANT) / 2
NOTHING = "none"
"""Message that tells nothing."""
DRAWS = 20
"""Number of states with which the agent of `own-view` plans."""
UNSEEN: Mapping[str, Any] = {"mean_price": PRICES[0], "price_pref": 1}
"""Stand-in for what the agent does not see of a user, which takes no part in its plan."""
EVERY = 10
"""Distance between the mean prices that the agent considers; all of them change no plan."""


@dataclass(frozen=True)
class PlayerView:
    """Knowledge of one player at the beginning of its turn.

    Attributes:
        flights: Flights of each user whom the seat sees: of the user itself, or of both for the agent.
        meetings: Points for meetings of each own flight, 0 or below; empty for the agent.
        events: Times of the shared events of both users, for the agent; empty for a user.
        rooms: Legal messages as (seat, text) by user, of the rooms in which the seat is.
        made: Number of proposals before each message of a user, by user, for the agent.
        proposals: All proposals, for the agent.
        offers: Own points for each proposal, for a user.
        pending: Whether a proposal waits for an answer.
    """

    seat: int
    flights: Mapping[int, tuple[Flight, ...]]
    meetings: tuple[int, ...]
    events: Mapping[int, tuple[Event, ...]]
    rooms: Mapping[int, tuple[tuple[int, str], ...]]
    made: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    proposals: tuple[Pair, ...] = ()
    offers: tuple[Costs, ...] = ()
    pending: bool = False
    due: ActionKind | None = None
    room_due: int | None = None
    rules: MediationConfig = field(default_factory=MediationConfig)

    def heard(self, user: int) -> list[str]:
        """Returns what a user told the agent."""
        return [text for speaker, text in self.rooms[user] if speaker == user]

    def with_message(self, user: int, text: str) -> PlayerView:
        """Returns the agent's view after one more message of a user."""
        rooms = {**self.rooms, user: (*self.rooms[user], (user, text))}
        return replace(self, rooms=rooms, made={**self.made, user: (*self.made[user], len(self.proposals))})

    @property
    def said(self) -> int:
        """Number of own messages."""
        return sum(speaker == self.seat for room in self.rooms.values() for speaker, _ in room)


def player_view(session: MediationSession, seat: int) -> PlayerView:
    """Returns the knowledge of `seat` in a running episode."""
    state, agent = session.state, seat == AGENT
    seen = [user for user in USERS if seat in (user, AGENT)]
    return PlayerView(
        seat=seat,
        flights={user: state.users[user].flights for user in seen},
        meetings=() if agent else tuple(state.users[seat].meeting_costs.tolist()),
        events={user: tuple(e for e in state.users[user].events if e.shared) for user in seen if agent},
        rooms={user: session.known_room(user, seat) for user in seen},
        made={user: tuple(session.made[user]) for user in seen if agent},
        proposals=tuple(session.proposals) if agent else (),
        offers=() if agent else tuple(state.costs(seat, pair) for pair in session.proposals),
        pending=session.pending is not None,
        due=session.due(seat),
        room_due=session.room_due(),
        rules=session.config,
    )


@dataclass(frozen=True)
class Random:
    """Says nothing, proposes random flights and accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat != AGENT:
            return "[accept]" if view.pending else f"[{MESSAGE}] {NOTHING}"
        if view.due is ActionKind.MESSAGE:
            return f"[{MESSAGE}] user {view.room_due}: {NOTHING}"
        return format_proposal(random_pair(view, rng))


@dataclass(frozen=True)
class Silent(Random):
    """Says nothing; as the agent it proposes the best flights by its own view and the rules."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT and view.due is not ActionKind.MESSAGE:
            return format_proposal(best_pair(view))
        return super().act(view, rng)


@dataclass(frozen=True)
class OwnView(Random):
    """Says nothing; as the agent it proposes what is best on average over states drawn given its view.

    With many draws it plays the silence line; unlike `Silent`, it also considers meetings that it does not see.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat != AGENT or view.due is ActionKind.MESSAGE:
            return super().act(view, rng)
        users = [User(flights=view.flights[user], events=view.events[user], **UNSEEN) for user in USERS]
        means = mean_rewards(users, view.rules, rng, DRAWS)
        row, column = divmod(int(np.nanargmax(means)), means.shape[1])
        return format_proposal((row, column))


@dataclass(frozen=True)
class Sharing:
    """Tells what its flights' meetings cost. As the agent it proposes the best flights by all that it was told.

    As a user it rejects the first proposals and tells its points for price and arrival, from which the agent learns how
    much these count.
    """

    rejects: int = 2
    """Number of proposals that a user rejects."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return Silent().act(view, rng)
        if view.pending:
            return "[accept]" if self.agrees(view, rng) else "[reject]"
        if view.offers:
            return f"[{MESSAGE}] price {view.offers[-1].price} arrival {view.offers[-1].arrival}"
        return format_costs({flight: -points for flight, points in enumerate(view.meetings)})

    def agrees(self, view: PlayerView, rng: np.random.Generator) -> bool:
        """Whether a user accepts the proposal that waits for its answer."""
        return len(view.offers) > self.rejects


def random_pair(view: PlayerView, rng: np.random.Generator) -> Pair:
    """Returns a random flight of each user."""
    one, other = (int(rng.integers(len(view.flights[user]))) for user in USERS)
    return one, other


# --- the agent's plan -----------------------------------------------------------------------------------------


def best_pair(view: PlayerView) -> Pair:
    """Returns the pair of flights with the best expected score, given all that the agent knows."""
    scores = expected_scores(view)
    row, column = divmod(int(scores.argmax()), scores.shape[1])
    return row, column


def expected_scores(view: PlayerView) -> NDArray[np.float64]:
    """Returns the expected score of each pair of flights, given all that the agent knows."""
    told = [_told_offers(view, user) for user in USERS]
    own = [
        meeting_points(view, user)
        + price_points(
            tuple(flight.price for flight in view.flights[user]),
            tuple((pair[user], price) for pair, price, _ in told[user]),
        )
        for user in USERS
    ]
    ends = [np.array([flight.end for flight in view.flights[user]]) for user in USERS]
    hours = np.abs(ends[0][:, None] - ends[1][None, :]) // 60
    prefs = [
        pref
        for pref in range(1, MOST_ARRIVAL_PREF + 1)
        if all(int(-(pref * hours[pair] / 3)) == arrival for offers in told for pair, _, arrival in offers)
    ] or [*range(1, MOST_ARRIVAL_PREF + 1)]
    arrival = np.mean([(-(pref * hours / 3)).astype(np.int64) for pref in prefs], axis=0)
    return np.asarray(own[0][:, None] + own[1][None, :] + 2 * arrival)


def meeting_points(view: PlayerView, user: int) -> NDArray[np.float64]:
    """Returns the expected points for meetings of each flight: what was told, else the mean of the shared events."""
    times = np.array([[event.start, event.end] for event in view.events[user]]).reshape(-1, 2)
    points = -MEAN_IMPORTANCE * clashes(times, view.flights[user]).sum(axis=1)
    for text in view.heard(user):
        for flight, cost in told_costs(text).items():
            if told_offer(text) is None and flight < len(points):
                points[flight] = -cost
    return np.asarray(points, np.float64)


@lru_cache(maxsize=256)
def price_points(prices: tuple[int, ...], told: tuple[tuple[int, int], ...]) -> NDArray[np.float64]:
    """Returns the expected points for the price of each flight, given what the user told of some flights."""
    means, chances = (each[::EVERY] for each in mean_prices(tuple(sorted(prices))))
    prefs = np.arange(1, MOST_PRICE_PREF + 1)[:, None, None]
    points = (-prefs * ((np.array(prices) - means[:, None]) / means[:, None])).astype(np.int64)
    weights = np.broadcast_to(chances[:, None], (*points.shape[:2], 1)).copy()[..., 0]
    for flight, said in told:
        # A difference of a point is allowed, since not all mean prices are considered.
        agreeing = weights * (np.abs(points[..., flight] - said) <= 1)
        weights = agreeing if agreeing.any() else weights
    return np.asarray(np.tensordot(weights / weights.sum(), points, axes=2))


def _told_offers(view: PlayerView, user: int) -> list[tuple[Pair, int, int]]:
    """Returns a user's points for price and arrival that it told, each with the last proposal before its message."""
    messages = zip(view.made[user], view.heard(user), strict=True)
    told = [(made, offer) for made, text in messages if made and (offer := told_offer(text)) is not None]
    return [(view.proposals[made - 1], *offer) for made, offer in told]


SCRIPTED: Mapping[str, ScriptedPlayer] = {
    "random": Random(), "silent": Silent(), "own-view": OwnView(), "sharing": Sharing(),
}  # fmt: skip
