"""Figures of an episode of this game, and reference lines for its rewards. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.losses import loss_figures
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, Costs, MediationState, Pair, check_pair
from selfplay_pipeline.games.mediation.scripted import best_pair, player_view
from selfplay_pipeline.games.mediation.text import told_costs, told_offer
from selfplay_pipeline.games.tags import PROPOSALS


def references(states: Sequence[MediationState]) -> dict[str, list[float]]:
    """Returns the mean reward of all pairs of flights, and the best one, on each state."""
    return {"random": [float(state.rewards.mean()) for state in states], "best": [1.0] * len(states)}


def _agreed(episode: Measured) -> Pair | None:
    return check_pair(episode.record.outcome.proposal, episode.state) if episode.agreed else None


def _costs(episode: Measured) -> Costs:
    """Returns the points of both users together for the agreed flights; 0 without an agreement."""
    pair = _agreed(episode)
    if pair is None:
        return Costs(0, 0, 0)
    one, other = (episode.state.costs(user, pair) for user in USERS)
    return Costs(*(mine + yours for mine, yours in zip(one, other, strict=True)))


def _told(episode: Measured) -> int:
    """Returns the number of flights whose true points for meetings their users told, over the measured users."""
    found = set()
    for turn in episode.turns:
        if turn.action == MESSAGE and turn.seat in USERS and told_offer(turn.text) is None:
            true = -episode.state.users[turn.seat].meeting_costs
            costs = told_costs(turn.text)
            found |= {(turn.seat, flight) for flight, cost in costs.items() if cost in true[flight : flight + 1]}
    return len(found)


def _flights(episode: Measured) -> int:
    return sum(len(episode.state.users[user].flights) for user in USERS if user in episode.seats)


FIGURES = (
    PROPOSALS,
    Figure("told", "own flights of which a user told the meetings' points", _told, _flights, unit="share"),
    Figure("meeting_points", "points for meetings", lambda e: _costs(e).meetings, better="higher", chart="Points"),
    Figure("price_points", "points for prices", lambda e: _costs(e).price, better="higher"),
    Figure("arrival_points", "points for arrivals", lambda e: _costs(e).arrival, better="higher"),
    *loss_figures(
        lambda session: best_pair(player_view(session, AGENT)),
        ("lost to telling", "lost to planning", "lost to agreement"),
    ),
)
