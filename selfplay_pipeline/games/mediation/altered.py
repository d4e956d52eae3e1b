"""Messages that tell other costs of the same flights, for the listening test and for swaps that keep what is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.altered import SWAPPED, first_clear
from selfplay_pipeline.games.base import INVALID, Altered, Turn
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, MediationState
from selfplay_pipeline.games.mediation.scripted import PlayerView, expected_scores, player_view
from selfplay_pipeline.games.mediation.session import MediationSession
from selfplay_pipeline.games.mediation.states import redraw
from selfplay_pipeline.games.mediation.text import retold, told_costs, told_offer

STEP, TRIES, MARGIN = 10, 20, 2.0
"""Points above the largest told cost; drawn messages; points by which a pair must lead."""


def keep_named(state: MediationState, seat: int, text: str) -> str:
    """Returns a user's message with the costs that its flights have in another state."""
    if seat not in USERS or told_offer(text) is not None:
        return text
    return retold(text, _costs(state, seat, told_costs(text)))


def altered(session: MediationSession, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
    """Returns a replacement for the last turn, a user's message to the agent, after which another pair is the best.

    Args:
        session: New session of the episode's state.
        turns: Turns of the episode.
        kind: Kind of alteration.
        rng: Source of the draws.
    """
    *earlier, message = turns
    said = told_costs(message.text)
    if message.seat not in USERS or not said or told_offer(message.text) is not None:
        return None
    for turn in earlier:
        session.step(turn.seat, turn.text, cut=turn.action == INVALID)
    before = _scores(player_view(session, AGENT), message.seat, message.text)

    def draw() -> dict[int, int]:
        """Draws all costs given the agent's view, or one: that of another flight, or the largest one plus `STEP`."""
        if kind == SWAPPED:
            return _costs(redraw(session.state, AGENT, session.config, rng), message.seat, said)
        return {int(rng.choice([*said])): int(rng.choice([*said.values(), max(said.values()) + STEP]))}

    def judge(new: Mapping[int, int]) -> tuple[list[int], float]:
        after = _scores(player_view(session, AGENT), message.seat, retold(message.text, {**said, **new}))
        best = int(after.argmax())
        lead = min(after.flat[best] - np.partition(after, -2, axis=None)[-2], before.max() - before.flat[best])
        return [*divmod(best, after.shape[1])], float(lead)

    return first_clear(
        said, draw, lambda new: retold(message.text, {**said, **new}), told_costs, judge, tries=TRIES, margin=MARGIN
    )


def _scores(view: PlayerView, user: int, text: str) -> NDArray[np.float64]:
    """Returns the agent's expected score of each pair after one more message."""
    return expected_scores(view.with_message(user, text))


def _costs(state: MediationState, user: int, flights: Mapping[int, int]) -> dict[int, int]:
    points = state.users[user].meeting_costs
    return {flight: int(-points[flight]) for flight in flights if flight < len(points)}
