"""Replacement messages that make another plan the best one, for `selfplay listen`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.altered import SWAPPED, first_clear
from selfplay_pipeline.games.base import MESSAGE, Altered
from selfplay_pipeline.games.matching.mentions import Cell, Cells, retold, told_cells
from selfplay_pipeline.games.matching.rules import Matching, MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.matching.states import draw_scores
from selfplay_pipeline.games.tags import untagged

TRIES = 300
"""Maximum number of drawn messages; the first one that makes another plan clearly the best is used."""
MARGIN = 0.1
"""Minimum lead of a plan, as a share of the largest score.

With the altered message, the new best plan must lead all others by it; with the original message, the old best plan
must lead the new one by it.
"""


def altered(
    state: MatchingState, turns: Sequence[Any], kind: str, config: MatchingConfig, rng: np.random.Generator
) -> Altered | None:
    """Returns a replacement for the last turn that changes only scores that its receiver does not see.

    Args:
        turns: Turns of the episode; the last is a message.

    Returns:
        None if none of `TRIES` draws changed the best plan given the receiver's knowledge.
    """
    message = turns[-1]
    scale, seen = state.scales[message.seat], state.masks[1 - message.seat]
    texts = [untagged(turn.text) for turn in turns if turn.seat == message.seat and turn.action == MESSAGE]
    heard, said = (told_cells(text, state.papers, state.reviewers) for text in ("\n".join(texts), texts[-1]))
    free = [cell for cell in said if not seen[cell]]
    if not free:
        return None

    def expected(cells: Cells) -> NDArray[np.float64]:
        table = np.full(seen.shape, float(config.mean_score))
        for cell, score in cells.items():
            table[cell] = score / scale
        return np.where(seen, state.table, table)

    def draw() -> Cells:
        """Draws the scores of a new state in which the same cells are visible, or one score uniformly."""
        if kind == SWAPPED:
            table = draw_scores(config, seen.shape, rng)
            return {cell: int(table[cell] * scale) for cell in free}
        return {free[rng.integers(len(free))]: int(rng.integers(config.max_score + 1) * scale)}

    def judge(new: Mapping[Cell, int]) -> tuple[list[list[int]], float]:
        after = expected({**heard, **new})
        plan, _value = best_matching(after)
        lead = min(_lead(after, plan), best_matching(before)[1] - _worth(before, plan))
        return [list(pair) for pair in plan], lead

    before = expected(heard)
    return first_clear(
        said,
        draw,
        lambda new: retold(message.text, state.papers, state.reviewers, {**new}),
        lambda text: told_cells(untagged(text), state.papers, state.reviewers),
        judge,
        tries=TRIES,
        margin=MARGIN * config.max_score,
    )


def _lead(table: NDArray[np.float64], plan: Matching) -> float:
    """Returns the lead of the best plan over the second-best plan."""
    others = []
    for pair in plan:
        without = table.copy()
        without[pair] -= table.max() * len(table) + 1
        others.append(_worth(table, best_matching(without)[0]))
    return _worth(table, plan) - max(others)


def _worth(table: NDArray[np.float64], plan: Matching) -> float:
    return float(sum(table[pair] for pair in plan))
