"""Credit of each turn of an episode: the reward minus the score that could be reached before the turn. Pure.

The score that can be reached before a turn depends only on earlier turns. So it is a baseline (Williams 1992):
subtracting it changes the noise of the policy gradient, but not its expectation. The credit is also the sum of all
later differences of that potential (Ng, Harada and Russell 1999). If several plans are best given the seat's knowledge,
the choice among them does not depend on the seat's proposal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.matching.lost_reward import known_cells, matching_of, possible_score
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.tags import ActionKind


def credits_of(state: MatchingState, turns: Sequence[Any], reward: float, config: MatchingConfig) -> list[float]:
    """Returns the credit of each turn, from -1 to 1: the reward minus the score that could be reached before the turn.

    The score is a share of the best score. While a proposal waits for its answer, the score that can be reached is the
    proposal's; otherwise it is the score of the best plan given the acting seat's knowledge. So the credit of an
    accepted proposal is its score minus the score of its proposer's best plan: the negative loss to planning
    (`lost_reward.py`), except among plans that seemed equally good. The credit of the answer is 0.

    Args:
        turns: Turns of the episode, each with its `proposal`.
        reward: Reward of the whole episode.
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
