"""What each turn of an episode was worth: by how much it changed what the episode can reach. Pure.

A potential says before each turn of an episode what can be reached from there. A turn's credit is the potential after
it minus that before, so that the credits of an episode add up to its reward minus the potential that it began with.
What is best to do is the same for either (Ng, Harada and Russell 1999, potential-based shaping).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from selfplay_pipeline.games.matching.losses import known_cells, matching_of, possible_score
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.tags import ActionKind


def credits_of(state: MatchingState, turns: Sequence[Any], reward: float, config: MatchingConfig) -> list[float]:
    """The credit of each turn, a share of the best score.

    While a proposal waits for its answer, the potential is what the proposal scores. Otherwise it is what the best plan
    scores on what the seat knows whose turn it is; at the end it is the reward. So a message is credited with what its
    hearer can do with it, and a proposal with what it falls short of its proposer's best plan: the loss to planning
    (`losses.py`), below 0.

    Args:
        turns: with the `proposal` of each.
        reward: of the whole episode.
    """
    potentials, pending = list[float](), None
    for turn, known in zip(turns, known_cells(state, turns, config), strict=False):
        if pending is None:
            potentials.append(possible_score(state, known[turn.seat], turn, config) / state.best)
        else:
            potentials.append(state.score(matching_of(pending)) / state.best)
        if turn.proposal:
            pending = turn
        elif turn.action == ActionKind.REJECT:
            pending = None
    return [after - before for before, after in pairwise([*potentials, reward])]
