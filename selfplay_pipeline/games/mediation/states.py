"""Random states, as DialOp draws them, and states drawn anew given what one seat sees.

A calendar is drawn half hour by half hour: in a free one an event begins with probability `p_event`, and its length is
one of `LENGTHS`. All flights of a user take about the same time. Flights that clash with no event are removed.

Given what the agent sees, importances are independent and uniform, prices tell something about the mean price, and the
private events follow from the shared ones and the flights: `Calendars` draws them from the process above under the
conditions that all shared events are in it and that each flight clashes with an event. The draws are weighted by the
chance that the removed flights clash with none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from math import comb, log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.special import ndtr

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.mediation.rules import (
    AGENT,
    CARRIERS,
    DAY,
    EVENING,
    LAST_HOUR,
    LENGTHS,
    LOWEST_PRICE,
    MORNING,
    MOST_ARRIVAL_PREF,
    MOST_IMPORTANT,
    MOST_PRICE_PREF,
    PRICES,
    USERS,
    Event,
    Flight,
    MediationConfig,
    MediationState,
    Span,
    User,
    clashes,
    overlap,
)

TRIES = 1_000
"""Maximum number of drawn states until one is legal."""
CALENDARS = 100
"""Number of calendars among which one is chosen by its weight."""
MOST_OPEN = 10
"""Largest number of flights whose clash with a private event is a condition of each draw; others change the weight."""
HALF_HOUR = 30
DURATIONS = (1, 10)
"""Smallest and largest duration of a flight in hours; each flight takes some seconds or minutes longer."""


def sample_state(config: MediationConfig, rng: np.random.Generator) -> MediationState:
    """Returns a random state; draws again until each user has a flight and not all pairs have the same score.

    Raises:
        UserError: The configuration admits no state.
    """
    return _legal(lambda: ([_user(config, rng) for _ in USERS], _draw(rng, 1, MOST_ARRIVAL_PREF)))


def check_fits(config: MediationConfig, state: MediationState) -> None:
    """Raises UserError unless the configuration could have drawn the state."""
    slots, evening = set(_slots(config.days)), _evening(config.days)
    for number, user in enumerate(state.users):
        where = f"game state: field 'users.{number}"
        if len(user.flights) > config.flights:
            raise UserError(f"{where}.flights': {len(user.flights)} flights, but game.flights is {config.flights}")
        if any(event.start not in slots or event.end - event.start not in LENGTHS for event in user.events):
            raise UserError(f"{where}.events': an event that game.days {config.days} cannot have")
        if any(flight.start >= evening or not user.clashes(at) for at, flight in enumerate(user.flights)):
            raise UserError(f"{where}.flights': a flight that clashes with no event or begins after the last day")
        shared = sum(event.shared for event in user.events)
        if shared != int(len(user.events) * config.p_shared):
            raise UserError(f"{where}.events': {shared} of {len(user.events)} are shared; game.p_shared says otherwise")


def redraw(state: MediationState, seat: int, config: MediationConfig, rng: np.random.Generator) -> MediationState:
    """Returns a state drawn given the view of one seat; see `Game.redraw`."""
    seen = {number: unseen_by_agent(state.users[number], config, rng) for number in USERS if seat == AGENT}

    def drawn() -> tuple[list[User], int]:
        users = []
        for number in USERS:
            own = state.users[number]
            if seat == AGENT:
                users.append(next(seen[number]))
            elif seat == number:
                users.append(User(flights=own.flights, events=own.events, **_preferences(own, rng)))
            else:
                users.append(_user(config, rng))
        return users, _draw(rng, 1, MOST_ARRIVAL_PREF)

    return _legal(drawn)


def unseen_by_agent(user: User, config: MediationConfig, rng: np.random.Generator) -> Iterator[User]:
    """Yields users with the same flights and shared events, all else drawn given these."""
    found = calendars_of(user, config).drawn(rng, CALENDARS)
    while True:
        spans = found[rng.integers(len(found))]
        shared = {(event.start, event.end) for event in user.events if event.shared}
        events = tuple(
            Event(start=span.start, end=span.end, importance=_draw(rng, 1, MOST_IMPORTANT), shared=span in shared)
            for span in spans
        )
        yield User(flights=user.flights, events=events, **_preferences(user, rng))


def _legal(drawn: Callable[[], tuple[list[User], int]]) -> MediationState:
    for _ in range(TRIES):
        try:
            users, pref = drawn()
            return MediationState(users=tuple(users), arrival_pref=pref)
        except (ValidationError, _NoFlight):
            continue
    raise UserError("game: no state has two pairs of flights with different scores; raise game.flights or game.p_event")


class _NoFlight(Exception):
    """All flights of a user were removed."""


def _user(config: MediationConfig, rng: np.random.Generator) -> User:
    spans = _calendar(config, rng)
    shared = {*rng.permutation(len(spans))[: int(len(spans) * config.p_shared)].tolist()}
    events = tuple(
        Event(start=span.start, end=span.end, importance=_draw(rng, 1, MOST_IMPORTANT), shared=at in shared)
        for at, span in enumerate(spans)
    )
    minutes, mean = 60 * _draw(rng, *DURATIONS), _draw(rng, *PRICES)
    flights = [_flight(config, minutes, mean, rng) for _ in range(config.flights)]
    kept = [flight for flight in flights if any(overlap(event, flight) for event in events)]
    if not kept:
        raise _NoFlight
    return User(
        flights=tuple(sorted(kept, key=lambda flight: flight.end)),
        events=events,
        mean_price=mean,
        price_pref=_draw(rng, 1, MOST_PRICE_PREF),
    )


def _calendar(config: MediationConfig, rng: np.random.Generator) -> list[Span]:
    spans: list[Span] = []
    for start in _slots(config.days):
        if spans and start < spans[-1].end:
            continue
        if rng.random() < config.p_event:
            spans.append(Span(start, start + LENGTHS[rng.integers(len(LENGTHS))]))
    return spans


def _flight(config: MediationConfig, minutes: int, mean: int, rng: np.random.Generator) -> Flight:
    start = _draw(rng, MORNING, _evening(config.days) - 1)
    return Flight(
        carrier=CARRIERS[rng.integers(len(CARRIERS))],
        price=max(LOWEST_PRICE, round(rng.normal(mean, mean))),
        start=start,
        end=start + minutes + int(rng.exponential()),
    )


def _draw(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))


def _evening(days: int) -> int:
    return (days - 1) * DAY + EVENING


def _slots(days: int) -> list[int]:
    """Returns the half hours in which an event may begin."""
    times = range(MORNING, _evening(days), HALF_HOUR)
    return [time for time in times if MORNING <= time % DAY < (LAST_HOUR + 1) * 60]


# --- given a view -----------------------------------------------------------------------------------------------


def _preferences(user: User, rng: np.random.Generator) -> dict[str, int]:
    means, chances = mean_prices(tuple(sorted(flight.price for flight in user.flights)))
    return {"mean_price": int(rng.choice(means, p=chances)), "price_pref": _draw(rng, 1, MOST_PRICE_PREF)}


@lru_cache
def mean_prices(prices: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns all mean prices that a user may have, and their chances given the prices of its flights."""
    means = np.arange(PRICES[0], PRICES[1] + 1)
    seen = np.array(prices)[:, None]
    below, above = (ndtr((seen + half - means) / means) for half in (-0.5, 0.5))
    below[seen[:, 0] == LOWEST_PRICE] = 0  # all lower prices become the lowest one
    logs = np.log(np.maximum(above - below, np.finfo(float).tiny)).sum(axis=0)
    chances = np.exp(logs - logs.max())
    return means, chances / chances.sum()


class _Way(NamedTuple):
    """One continuation of a calendar in a free slot: nothing, or an event with its end.

    Attributes:
        following: Next slot that may be free.
        closes: Open flights with which the event clashes, as bits.
    """

    chance: float
    end: int
    following: int
    closes: int = 0
    private: bool = False


class Calendars:
    """All calendars of a user that agree with all that the agent sees of it, with their chances.

    A flight that clashes with no shared event must clash with a private one. Up to `MOST_OPEN` such flights are open:
    bits of a mask say which of them still have no clash.

    Attributes:
        chance: Total probability of all that may follow slot `i` if it is free, `j` private events are still to come,
            and the open flights of mask `m` must still clash, at `[i, j, m]`.
        counts: Unnormalised chances of each number of private events in `private`.
    """

    def __init__(self, user: User, config: MediationConfig) -> None:
        self.user, self.config = user, config
        self.slots = _slots(config.days)
        self.shared = {event.start: event.end for event in user.events if event.shared}
        known, most = len(self.shared), len(self.slots)
        self.private = [n - known for n in range(known, most + 1) if int(n * config.p_shared) == known]
        seen = [Span(*span) for span in self.shared.items()]
        self.open = [one for one in user.flights if not any(overlap(event, one) for event in seen)][:MOST_OPEN]
        self.masks = np.arange(2 ** len(self.open))
        self.ways = [[*self._ways(at)] for at, _ in enumerate(self.slots)]
        self.chance = self._chances()
        self.counts = np.array([self.chance[0, left, -1] / comb(known + left, known) for left in self.private])
        self.next: dict[tuple[int, int, int], tuple[list[_Way], list[float]]] = {}

    def drawn(self, rng: np.random.Generator, number: int, among: int = CALENDARS) -> list[list[Span]]:
        """Returns calendars drawn given all that the agent sees; the true one takes no part in the draw."""
        if self.private == [0]:
            return [[Span(*span) for span in sorted(self.shared.items())]] * number
        found = [self.one(rng) for _ in range(max(number, among))]
        logs = np.array([self._log_weight(spans) for spans in found])
        if not np.isfinite(logs).any():
            if among < CALENDARS:  # few draws may all miss a flight beyond `MOST_OPEN`
                return self.drawn(rng, number)
            raise UserError("game state: no calendar agrees with the flights that the agent sees")
        weights = np.exp(logs - logs.max())
        return [found[at] for at in rng.choice(len(found), number, p=weights / weights.sum())]

    def one(self, rng: np.random.Generator) -> list[Span]:
        """Returns a calendar drawn given the shared events and the open flights."""
        at, mask, spans = 0, len(self.masks) - 1, list[Span]()
        if not self.counts.any():
            raise UserError("game state: no calendar agrees with the flights that the agent sees")
        left = self.private[rng.choice(len(self.counts), p=self.counts / self.counts.sum())]
        while at < len(self.slots):
            ways, below = self._next(at, left, mask)
            way = ways[min(bisect_right(below, rng.random() * below[-1]), len(ways) - 1)]
            spans += [Span(self.slots[at], way.end)] * bool(way.end)
            left, at, mask = left - way.private, way.following, mask & ~way.closes
        return spans

    def _chances(self) -> NDArray[np.float64]:
        chance = np.zeros((len(self.slots) + 1, max(self.private) + 1, len(self.masks)))
        chance[-1, 0, 0] = 1
        for at in reversed(range(len(self.slots))):
            for way in self.ways[at]:
                if way.private:
                    chance[at, 1:] += way.chance * chance[way.following, :-1][:, self.masks & ~way.closes]
                else:
                    chance[at] += way.chance * chance[way.following]
        return chance

    def _ways(self, at: int) -> Iterator[_Way]:
        """Yields all that may happen in a free slot."""
        start, p = self.slots[at], self.config.p_event
        if start in self.shared:
            yield _Way(p, self.shared[start], bisect_left(self.slots, self.shared[start]))
            return
        yield _Way(1 - p, 0, at + 1)
        for length in LENGTHS:
            if not any(start < other < start + length for other in self.shared):
                event = Span(start, start + length)
                closes = sum(overlap(event, flight) << bit for bit, flight in enumerate(self.open))
                yield _Way(p / len(LENGTHS), event.end, bisect_left(self.slots, event.end), closes, private=True)

    def _next(self, at: int, left: int, mask: int) -> tuple[list[_Way], list[float]]:
        """Returns all that may happen in a free slot, and the cumulated chances."""
        if (at, left, mask) not in self.next:
            ways = [way for way in self.ways[at] if left or not way.private]
            chances = [way.chance * self.chance[way.following, left - way.private, mask & ~way.closes] for way in ways]
            self.next[at, left, mask] = ways, np.cumsum(chances).tolist()
        return self.next[at, left, mask]

    def _log_weight(self, spans: list[Span]) -> float:
        """Returns the log-probability of the known and the removed flights under a calendar, up to a constant."""
        flights = self.user.flights
        if not spans or not clashes(np.array(spans), flights).any(axis=1).all():
            return -np.inf
        removed = self.config.flights - len(flights)
        minutes = (flights[0].end - flights[0].start) // 60 * 60 + 1  # one minute more is the mean
        first, last = MORNING, _evening(self.config.days)
        free, clear = 0, first  # a flight that begins in [clear, ...) clashes with no event so far
        for span in spans:
            free += max(0, min(span.start - minutes + 1, last) - clear)
            clear = max(clear, span.end)
        free += max(0, last - clear)
        # A flight that begins together with an event is counted as a clash; half a minute stands for these cases.
        return removed * log(max(free, 0.5) / (last - first))


@lru_cache(maxsize=4)  # A swapped message redraws one state up to twenty times, and a state has two users.
def calendars_of(user: User, config: MediationConfig) -> Calendars:
    """Returns the calendars of a user that agree with all that the agent sees."""
    return Calendars(user, config)
