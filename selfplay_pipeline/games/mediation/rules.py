"""Mediation: the configuration, a state, and the score of a pair of flights. Pure.

Rules: Lin, Tomlin, Andreas, Eisner, "Decision-Oriented Dialogue for Human-AI Collaboration" (arXiv 2305.20076). The
scores, best and worst ones included, equal those of all 162 recorded games between people.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from selfplay_pipeline.games.base import GameSettings

FIRST, SECOND, AGENT = range(3)
"""Seats: two users and the agent."""
USERS = (FIRST, SECOND)
ROLES = ("user", "user", "agent")
MORNING, EVENING, LAST_HOUR = 9 * 60, 19 * 60, 20
"""Minute of the day at which the first day begins and the last day ends, and the last hour in which events begin."""
DAY = 24 * 60
MOST_DAYS, MOST_FLIGHTS = 3, 30
LENGTHS = (30, 60, 120, 240)
"""Possible lengths of events in minutes."""
MOST_IMPORTANT, MOST_PRICE_PREF, MOST_ARRIVAL_PREF = 10, 20, 10
LOWEST_PRICE = 50
PRICES = (50, 999)
"""Smallest and largest mean price of a user's flights."""

Carrier = Literal["JetBlue", "American", "Delta", "Southwest", "United", "Alaska"]
CARRIERS: tuple[Carrier, ...] = get_args(Carrier)

Pair = tuple[int, int]
"""Flight of each user, by its position in the user's list."""
Points = NDArray[np.int64]


class MediationConfig(GameSettings):
    """Size of the states, protocol and limits of the game."""

    name: Literal["mediation"] = "mediation"
    """Name of the game."""
    flights: Annotated[int, Field(ge=2, le=MOST_FLIGHTS)] = 30
    """Number of flights that are drawn for each user.

    Flights that clash with none of the user's events are removed, as in DialOp.
    """
    days: Annotated[int, Field(ge=1, le=MOST_DAYS)] = 3
    """Number of days of the calendars and flights, from Wednesday to at most Friday."""
    p_event: Annotated[float, Field(gt=0, le=1)] = 0.35
    """Chance that an event begins in a free half hour of a calendar."""
    p_shared: Annotated[float, Field(ge=0, le=1)] = 0.75
    """Share of each user's events whose times the agent sees, rounded down to whole events."""
    protocol: Literal["free", "fixed"] = "free"
    """Rule of turns, `free` or `fixed`.

    With `free`, users and agent talk, the agent proposes, and both users accept or reject. With `fixed`, each user says
    exactly `messages` messages, the agent answers each of them but the last, and then it proposes once; that is the
    outcome.
    """
    messages: Annotated[int, Field(ge=1)] = 1
    """Number of messages of each user before the proposal, with `protocol: fixed`."""
    max_errors: Annotated[int, Field(ge=1)] = 5
    """Number of illegal actions of one player in a row after which an episode ends without agreement."""
    max_length: Annotated[int, Field(ge=1)] = 40
    """Maximum number of turns in an episode, counting all players and illegal turns. Without agreement by then, all
    rewards are 0."""

    @property
    def has_dialops_states(self) -> bool:
        """Whether the states are those of DialOp, and people's turns are legal."""
        return (self.flights, self.days, self.p_event, self.p_shared, self.protocol) == (30, 3, 0.35, 0.75, "free")

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.protocol == "fixed" and self.max_length < (needed := 4 * self.messages - 1):
            raise ValueError(
                f"max_length {self.max_length} leaves no turn for the proposal after {self.messages} messages of each "
                f"user; it needs {needed} turns"
            )
        return self


_Minute = Annotated[int, Field(strict=True, ge=MORNING, lt=(MOST_DAYS + 1) * DAY)]


class Span(NamedTuple):
    """Time from `start` to `end`, in minutes since the midnight before the first day."""

    start: int
    end: int


class Times(Protocol):
    """Anything with a beginning and an end, in minutes."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class Part(BaseModel):
    """Part of a state; parts are equal if their fields are, whatever was computed from them."""

    model_config = ConfigDict(frozen=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and type(self) is type(other) and self._fields() == other._fields()

    def __hash__(self) -> int:
        return hash(self._fields())

    def _fields(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in type(self).model_fields)


class Event(Part):
    """Meeting in a user's calendar.

    Attributes:
        importance: Points that the user loses if its flight clashes with the event.
        shared: Whether the agent sees the times of the event.
    """

    start: _Minute
    end: _Minute
    importance: Annotated[int, Field(strict=True, ge=1, le=MOST_IMPORTANT)]
    shared: bool


class Flight(Part):
    """One flight that a user may take."""

    carrier: Carrier
    price: Annotated[int, Field(strict=True, ge=LOWEST_PRICE, le=100_000)]
    start: _Minute
    end: _Minute


class Costs(NamedTuple):
    """Points of one user for a pair of flights; each part is 0 or below, except that a cheap flight gains points."""

    meetings: int
    price: int
    arrival: int

    @property
    def total(self) -> int:
        return sum(self)


class User(Part):
    """One user's part of a problem.

    Attributes:
        flights: Flights by arrival; a flight is named by its position.
        events: Calendar by time.
        mean_price: Price that costs the user nothing, which no player sees.
        price_pref: Points that a price of twice the mean costs, which no player sees.
    """

    flights: Annotated[tuple[Flight, ...], Field(min_length=1, max_length=MOST_FLIGHTS)]
    events: tuple[Event, ...]
    mean_price: Annotated[int, Field(strict=True, ge=PRICES[0], le=PRICES[1])]
    price_pref: Annotated[int, Field(strict=True, ge=1, le=MOST_PRICE_PREF)]

    @field_validator("flights")
    @classmethod
    def _by_arrival(cls, flights: tuple[Flight, ...]) -> tuple[Flight, ...]:
        if any(one.end > other.end for one, other in pairwise(flights)):
            raise ValueError("the flights are not in the order of their arrival")
        _check_times(flights)
        return flights

    @field_validator("events")
    @classmethod
    def _apart(cls, events: tuple[Event, ...]) -> tuple[Event, ...]:
        if any(one.end > other.start for one, other in pairwise(events)):
            raise ValueError("the events overlap or are not in the order of time")
        _check_times(events)
        return events

    def clashes(self, flight: int) -> list[Event]:
        """Returns the events with which a flight clashes."""
        return [event for event in self.events if overlap(event, self.flights[flight])]

    @cached_property
    def meeting_costs(self) -> Points:
        """Points for the events with which each flight clashes, 0 or below."""
        return meeting_costs(self.events, self.flights)

    @cached_property
    def price_costs(self) -> Points:
        """Points for the price of each flight."""
        prices = np.array([flight.price for flight in self.flights])
        # Each step as DialOp computes it, since the result is cut to a whole number.
        return (-self.price_pref * ((prices - self.mean_price) / self.mean_price)).astype(np.int64)


class MediationState(Part):
    """One problem.

    Attributes:
        arrival_pref: Points that each user loses for three hours between both arrivals, which no player sees.
    """

    users: tuple[User, User]
    arrival_pref: Annotated[int, Field(strict=True, ge=1, le=MOST_ARRIVAL_PREF)]

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if not self.span:
            raise ValueError("field 'users': all pairs of flights have the same score")
        return self

    @cached_property
    def arrival_costs(self) -> Points:
        """Points of each user for both arrivals, by both flights."""
        return arrival_costs(self.users, self.arrival_pref)

    @cached_property
    def scores(self) -> Points:
        """Score of each pair of flights, both users together."""
        one, other = (user.meeting_costs + user.price_costs for user in self.users)
        return one[:, None] + other[None, :] + 2 * self.arrival_costs

    @cached_property
    def rewards(self) -> NDArray[np.float64]:
        """Reward of each pair of flights: (score − worst) / (best − worst)."""
        return np.asarray((self.scores - self.scores.min()) / self.span)

    @cached_property
    def span(self) -> int:
        """Difference between the best and the worst score."""
        return int(self.scores.max() - self.scores.min())

    @cached_property
    def best_pair(self) -> Pair:
        """First of the pairs with the best score."""
        row, column = divmod(int(self.scores.argmax()), self.scores.shape[1])
        return row, column

    def costs(self, user: int, pair: Pair) -> Costs:
        """Returns one user's points for a pair of flights."""
        own, flight = self.users[user], pair[user]
        return Costs(int(own.meeting_costs[flight]), int(own.price_costs[flight]), int(self.arrival_costs[pair]))


def overlap(one: Times, other: Times) -> bool:
    """Whether two times overlap: one of them begins inside the other.

    As in DialOp, times that begin together do not overlap.
    """
    return bool(one.start < other.start < one.end or other.start < one.start < other.end)


def meeting_costs(events: Sequence[Event], flights: Sequence[Flight]) -> Points:
    """Returns the points for the events with which each flight clashes, 0 or below."""
    found = np.zeros(len(flights), np.int64)
    if events:
        clash = clashes(np.array([[event.start, event.end] for event in events]), flights)
        found -= clash @ np.array([event.importance for event in events])
    return found


def clashes(events: Points, flights: Sequence[Flight]) -> NDArray[np.bool_]:
    """Returns whether each flight clashes with each event, shape (flights, events).

    Args:
        events: Start and end of each event, shape (events, 2).
        flights: The flights.
    """
    start, end = np.array([[flight.start, flight.end] for flight in flights])[:, :, None].transpose(1, 0, 2)
    begins, ends = events.T
    return np.asarray(((begins < start) & (start < ends)) | ((start < begins) & (begins < end)))


def arrival_costs(users: Sequence[User], pref: int) -> Points:
    """Returns each user's points for both arrivals, by both flights, 0 or below."""
    one, other = (np.array([flight.end for flight in user.flights]) for user in users)
    hours = np.abs(one[:, None] - other[None, :]) // 60
    return np.asarray(-(pref * hours / 3), np.int64)


def check_pair(decision: Any, state: MediationState) -> Pair:
    """Returns the flights of a decision.

    Raises:
        ValueError: The decision does not name a flight of each user.
    """
    if not isinstance(decision, list | tuple) or [type(flight) for flight in decision] != [int, int]:
        raise ValueError(f"{decision!r}: names no flight of each user")
    for user, flight in enumerate(decision):
        if not 0 <= flight < len(state.users[user].flights):
            raise ValueError(f"{decision!r}: user {user} has no flight {flight}")
    return decision[0], decision[1]


def _check_times(times: Sequence[Times]) -> None:
    if any(time.start >= time.end for time in times):
        raise ValueError("a time ends before it begins")
