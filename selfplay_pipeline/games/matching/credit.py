"""The credit of each turn of an episode: the reward minus the score that could be reached before the turn. Pure.

The score that can be reached before a turn depends only on the turns before it. So it is a baseline (Williams 1992):
subtracting it changes the noise of the policy's gradient, but not its expectation. The credit is also the sum of all
later differences of that potential (Ng, Harada and Russell 1999). Where several plans are best on what the seat knows,
always the same one counts, whatever the seat proposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.matching.losses import known_cells, matching_of, possible_score
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.tags import ActionKind


def credits_of(state: MatchingState, turns: Sequence[Any], reward: float, config: MatchingConfig) -> list[float]:
    """The credit of each turn, from -1 to 1: the reward minus what could be reached before it.

    While a proposal waits for its answer, that is what the proposal scores, a share of the best score. Otherwise it is
    what the best plan scores on what the seat knows whose turn it is. So a proposal that is accepted is credited with
    what it falls short of its proposer's best plan, the loss to planning (`losses.py`) but for plans that seemed as
    good; and its answer with 0.

    Args:
        turns: with the `proposal` of each.
        reward: of the whole episode.
    """
    credits, pending = list[float](), None
    for turn, known in zip(turns, known_cells(state, turns, config), strict=False):
        if pending is None:
            reachable = possible_score(state, known[turn.seat], config)
        else:
            reachable = state.score(matching_of(pending))
        credits.append(reward - reachable / state.best)
        if turn.proposal:
            pending = turn
        elif turn.action == ActionKind.REJECT:
            pending = None
    return credits
