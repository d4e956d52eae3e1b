"""Figures of an episode of this game, and reference lines for its rewards. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from selfplay_pipeline.games.bargaining.rules import (
    BargainingConfig,
    BargainingState,
    Split,
    check_split,
    mean_gains,
    rest,
    shares,
)
from selfplay_pipeline.games.bargaining.text import asked_items, told_values
from selfplay_pipeline.games.base import MESSAGE, Asking, Turn
from selfplay_pipeline.games.figures import Figure
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.questions import count_asking
from selfplay_pipeline.games.tags import PROPOSALS


def asking(state: BargainingState, turns: Sequence[Turn], seat: int) -> Asking:
    """Returns counts of the values that one seat asked for, and of the true values that its partner told."""

    def told_in(text: str, asked: set[int]) -> set[int]:
        return _true(told_values(text), state, 1 - seat)

    return count_asking(turns, seat, asked_items, told_in, lambda item: True)


def _true(told: dict[int, int], state: BargainingState, teller: int) -> set[int]:
    return {item for item, value in told.items() if state.values[teller][item] == value}


def is_pareto(state: BargainingState, split: Split) -> bool:
    """Whether no other split is worth more to one player and at least as much to the other."""
    one, other = state.worth(split)
    found = [state.worth((share, rest(state.counts, share))) for share in shares(state.counts)]
    return not any(a >= one and b >= other and a + b > one + other for a, b in found)


def _agreed(episode: Measured) -> Split | None:
    return check_split(episode.record.outcome.proposal, episode.state.counts) if episode.agreed else None


def _worth(episode: Measured) -> tuple[int, int]:
    """Returns the value of the agreed split to each player; 0 without an agreement."""
    split = _agreed(episode)
    return episode.state.worth(split) if split else (0, 0)


def _own(episode: Measured) -> float:
    return sum(_worth(episode)[seat] for seat in episode.seats) / len(episode.seats)


def _pareto(episode: Measured) -> bool:
    split = _agreed(episode)
    return split is not None and is_pareto(episode.state, split)


def _told(episode: Measured) -> int:
    """Returns the number of item types whose true value a measured seat told, summed over these seats."""
    told = 0
    for seat in episode.seats:
        said = [told_values(turn.text) for turn in episode.turns if turn.seat == seat and turn.action == MESSAGE]
        told += len({item for values in said for item in _true(values, episode.state, seat)})
    return told


FIGURES = (
    Figure("sum", "sum of both values", lambda e: sum(_worth(e)), better="higher", chart="Values"),
    Figure("own", "own value", _own),
    Figure(
        "pareto", "agreed splits that cannot be better for both", _pareto,
        lambda e: _agreed(e) is not None, better="higher", unit="share",
    ),
    PROPOSALS,
    Figure("told", "own values told", _told, lambda e: len(e.seats) * len(e.state.counts), unit="share"),
)  # fmt: skip


def references(states: Sequence[BargainingState], config: BargainingConfig) -> dict[str, list[float]]:
    """Returns reference rewards by name, one per state, averaged over both players.

    `random` is the expectation over all splits, `best` the reward of the best split.
    """
    lines: dict[str, list[float]] = {"random": [], "best": []}
    for state in states:
        gains, counts = mean_gains(config, state.counts, state.values), np.array(state.counts)
        lines["random"].append(float(gains.mean(axis=0) @ counts))
        lines["best"].append(float(gains.max(axis=0) @ counts))
    return lines
