"""Tables of the users' flights and calendars, for the terminal and the report page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.drawing import BAD, EpisodeDrawing, StateDrawing, Table, drawn_decision
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, Costs, MediationState, Pair, check_pair
from selfplay_pipeline.games.mediation.text import span

PARTS = ("meetings", "price", "arrival", "together")


def draw_state(state: MediationState) -> StateDrawing:
    """Returns tables of each seat's view, of all meetings, and of the points that no player sees."""
    return StateDrawing(views=[_flights(state, user) for user in USERS] + [_agents(state)], whole=_whole(state))


def draw_view(state: MediationState, seat: int) -> Sequence[Table]:
    """Returns tables of what a seat sees at the beginning."""
    if seat == AGENT:
        flights = [_agents(state, [user], title=flights_of(user)) for user in USERS]
        return [*flights, *(_shared_meetings(state, user) for user in USERS)]
    return [_flights(state, seat, "your flights"), _meetings(state, seat, "your meetings")]


def draw_episode(state: MediationState, turns: Sequence[Any], decision: Any) -> EpisodeDrawing:
    """Returns tables of the agreed flights (or else the last proposed ones) and of a best pair."""
    final = drawn_decision(turns, decision)
    if not final:
        return EpisodeDrawing(about_whole="All flights' points (nothing was proposed)")
    pair = check_pair(final, state)
    return EpisodeDrawing(
        decision="; ".join(f"user {user}: flight {pair[user]} ({_words(state, user, pair[user])})" for user in USERS),
        about_whole="All flights' points, and those of the chosen flights",
        results=[_result(state, pair, agreed=decision is not None)],
    )


def _words(state: MediationState, user: int, at: int) -> str:
    flight = state.users[user].flights[at]
    return f"${flight.price}, {span(flight)}"


def flights_of(user: int) -> str:
    """Returns the title of the agent's table of a user's flights."""
    return f"flights of user {user}"


def _flights(state: MediationState, user: int, title: str = "sees") -> Table:
    own = state.users[user]
    return Table(
        title=title,
        seat=user,
        columns=["price", "times", "meetings"],
        rows=[str(at) for at, _ in enumerate(own.flights)],
        cells=[
            [f"${flight.price}", span(flight), str(points)]
            for flight, points in zip(own.flights, own.meeting_costs.tolist(), strict=True)
        ],
    )


def _agents(state: MediationState, users: Sequence[int] = USERS, title: str = "sees") -> Table:
    rows = [(user, at) for user in users for at, _ in enumerate(state.users[user].flights)]
    return Table(
        title=title,
        seat=AGENT,
        columns=["price", "times", "shared clashes"],
        rows=[f"user {user}: {at}" if len(users) > 1 else str(at) for user, at in rows],
        cells=[
            [
                f"${state.users[user].flights[at].price}",
                span(state.users[user].flights[at]),
                str(sum(event.shared for event in state.users[user].clashes(at))),
            ]
            for user, at in rows
        ],
    )


def _meetings(state: MediationState, user: int, title: str) -> Table:
    events = state.users[user].events
    return Table(
        title=title,
        seat=user,
        columns=["importance", "agent sees it"],
        rows=[span(event) for event in events],
        cells=[[str(event.importance), "yes" if event.shared else "no"] for event in events],
    )


def _shared_meetings(state: MediationState, user: int) -> Table:
    rows = [span(event) for event in state.users[user].events if event.shared]
    return Table(title=f"user {user}'s shared meetings", seat=AGENT, columns=[], rows=rows, cells=[[] for _ in rows])


def _whole(state: MediationState) -> list[Table]:
    tables = []
    for user in USERS:
        own = state.users[user]
        cells = zip(own.meeting_costs.tolist(), own.price_costs.tolist(), strict=True)
        tables.append(
            Table(
                title=f"points of user {user}",
                columns=["meetings", "price"],
                rows=[str(at) for at, _ in enumerate(own.flights)],
                cells=[[str(points) for points in row] for row in cells],
            )
        )
        tables.append(_meetings(state, user, f"meetings of user {user}").model_copy(update={"seat": None}))
    return tables


def _result(state: MediationState, pair: Pair, *, agreed: bool) -> Table:
    """Returns a table of each user's points for the pair and for a best pair; the last row gives their sums."""
    both = [pair, state.best_pair]
    columns = [_points(state.costs(user, each)) for each in both for user in USERS]
    sums = [int(state.scores[each]) for each in both]
    cells = [[str(column[row]) for column in columns] for row, _ in enumerate(PARTS)]
    return Table(
        title="agreed" if agreed else "last proposal, not agreed",
        columns=["user 0", "user 1", "best: user 0", "best: user 1"],
        rows=[*PARTS, "both users"],
        cells=[*cells, [str(sums[0]), "", str(sums[1]), ""]],
        cells_that_are={BAD: [(len(PARTS), 0)] if sums[0] < sums[1] else []},
    )


def _points(costs: Costs) -> list[int]:
    return [*costs, costs.total]
