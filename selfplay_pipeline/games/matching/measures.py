"""Figures of an episode of this game, and reference lines for its rewards. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from selfplay_pipeline.games.base import MESSAGE, SAME_SCORE, KnownLine
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.losses import lost_to
from selfplay_pipeline.games.matching.lost_reward import Losses, lost, told_truly
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, own_view_matching
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.tags import PROPOSALS

OPTIMAL = 1 - 1e-9
"""Smallest normalised reward of an optimal matching."""
KNOWN_LINES = {
    "human pairs (8×8)": KnownLine(0.921, 0.906, 0.936, 134),
    "GPT-3.5 (8×8)": KnownLine(0.475, 0.416, 0.533, 103),
}
"""Rewards on DialOp's boards of the people in data/dialop, and of GPT-3.5 in self-play, scored anew.

In the 75 games in which GPT-3.5 agreed on a matching, its mean reward is 0.652.
"""


def _told(episode: Measured) -> int:
    """Returns the number of cells whose true score, as the author sees it, the measured seats told in messages."""
    messages = [turn for turn in episode.turns if turn.action == MESSAGE]
    return len({(turn.seat, cell) for turn in messages for cell in told_truly(episode.state, turn)})


@lru_cache(maxsize=1)
def _lost(episode: Measured) -> Losses | None:
    """Returns the losses of an episode's reward, None if they are unknown; computed once for the three figures.

    They are those of this game's rewards, so that they are unknown in a subclass with other rewards.
    """
    config = episode.game.config
    assert isinstance(config, MatchingConfig)
    found = lost(episode.state, episode.record.turns, config, agreed=episode.agreed)
    return found if found and abs(found.together - (1 - episode.reward)) <= SAME_SCORE else None


def _lost_to(part: str, label: str) -> Figure:
    return lost_to(label, lambda e: getattr(_lost(e), part, 0.0), lambda e: _lost(e) is not None)


FIGURES = (
    Figure(
        "optimal", "optimal matchings", lambda e: e.reward >= OPTIMAL,
        better="higher", unit="share", chart="Best matchings",
    ),
    _lost_to("telling", "lost to telling"),
    _lost_to("planning", "lost to planning"),
    _lost_to("agreement", "lost to agreement"),
    PROPOSALS,
    Figure(
        "told", "visible cells told", _told,
        lambda e: int(sum(e.state.masks[seat].sum() for seat in e.seats)), unit="share",
    ),
)  # fmt: skip


def references(states: Sequence[MatchingState], config: MatchingConfig) -> dict[str, list[float]]:
    """Returns normalised reference rewards by name, one per state.

    `random` is the expectation over all matchings. `own_view` is the reward of a plan from one player's visible scores,
    with the mean for unseen cells and without regard to the filter; it is the mean over the players that may
    propose. `optimum` is the best reward on the pooled view.
    """
    mean = config.mean_score
    return {
        "random": [float(state.table.mean()) * state.size / state.best for state in states],
        "own_view": [float(np.mean([_alone(state, seat, mean) for seat in config.proposers])) for state in states],
        "optimum": [1.0] * len(states),
    }


def _alone(state: MatchingState, seat: int, mean: float) -> float:
    return state.score(own_view_matching(state, seat, mean)) / state.best
