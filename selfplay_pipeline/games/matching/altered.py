"""Replacement messages that make another plan the best one, for `selfplay listen`. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.altered import SWAPPED, first_clear
from selfplay_pipeline.games.base import MESSAGE, Altered
from selfplay_pipeline.games.matching import renaming
from selfplay_pipeline.games.matching.mentions import Cell, Cells, retold, told_cells
from selfplay_pipeline.games.matching.rules import Matching, MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.matching.states import draw_scores
from selfplay_pipeline.games.tags import untagged

EXCHANGED = "exchanged"
"""Kind of alteration in which the message tells its numbers of other reviewers: a listener may read names alone."""
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
    """Returns a replacement for the last turn, different only in scores that its receiver does not see, or in names.

    Args:
        turns: Turns of the episode; the last is a message.

    Returns:
        None if none of `TRIES` draws changed the best plan given the receiver's knowledge.
    """
    message = turns[-1]
    scale, seen = state.scales[message.seat], state.masks[1 - message.seat]
    texts = [untagged(turn.text) for turn in turns if turn.seat == message.seat and turn.action == MESSAGE]
    earlier, said = (told_cells(text, state.papers, state.reviewers) for text in ("\n".join(texts[:-1]), texts[-1]))
    free = [cell for cell in said if not seen[cell]]
    margin = MARGIN * config.max_score
    if not free:
        return None

    # A speaker that tells its largest scores means other ones to be smaller, however small those are that it tells.
    untold = 0.0 if kind == EXCHANGED else float(config.mean_score)

    def expected(cells: Cells) -> NDArray[np.float64]:
        table = np.full(seen.shape, untold)
        for cell, score in cells.items():
            table[cell] = score / scale
        return np.where(seen, state.table, table)

    def draw() -> Cells:
        """Draws the scores of a new state in which the same cells are visible, or one score uniformly."""
        if kind == SWAPPED:
            table = draw_scores(config, seen.shape, rng)
            return {cell: int(table[cell] * scale) for cell in free}
        return {free[rng.integers(len(free))]: int(rng.integers(config.max_score + 1) * scale)}

    def judge(told: Mapping[Cell, int]) -> tuple[list[list[int]], float]:
        after = expected({**earlier, **told})
        plan, _value = best_matching(after)
        lead = min(_lead(after, plan), best_matching(before)[1] - _worth(before, plan))
        return [list(pair) for pair in plan], lead

    def read(text: str) -> Cells:
        return told_cells(untagged(text), state.papers, state.reviewers)

    before = expected({**earlier, **said})
    if kind == EXCHANGED:
        for text in _exchanges(state, message.text, rng):
            told = read(text)
            decision, lead = judge(told)
            if lead >= margin and len(told) == len(said) and not any(seen[cell] for cell in told):
                return Altered(text, decision)
        return None
    return first_clear(
        said,
        draw,
        lambda new: retold(message.text, state.papers, state.reviewers, {**new}),
        read,
        lambda new: judge({**said, **new}),
        tries=TRIES,
        margin=margin,
    )


def _exchanges(state: MatchingState, text: str, rng: np.random.Generator) -> Iterator[str]:
    """Yields the text with its reviewers' names exchanged at random, `TRIES` times."""
    for _ in range(TRIES):
        names = {renaming.ROWS: rng.permutation(state.size).tolist(), renaming.COLUMNS: [*range(state.size)]}
        yield renaming.retold(state, names, text)


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
