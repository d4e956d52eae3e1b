"""Advantages of single turns, for games that give each turn a credit of its own. Pure; imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from selfplay_pipeline.convert.rows import CREDITS, own_turns

EPSILON = 1e-6
"""Constant that verl's GRPO adds to a standard deviation."""


def turn_advantages(rows: Sequence[Mapping[str, Any]], *, by_std: bool) -> list[list[float]]:
    """Returns the advantage of each turn of the row's seat: its credit minus the mean credit of the same turn in the
    group.

    Turns of different episodes correspond by their number: a seat's first turn, its second, and so on. If every turn is
    credited with the reward and all episodes have the same number of turns, these are GRPO's advantages. A turn that
    only one episode has gets 0.

    Args:
        rows: All rows of one group.
        by_std: Whether to divide by a standard deviation, the largest over the turns. All turns of a group have the
            same divisor, so that turns with little influence on the reward keep small advantages.

    Returns:
        Advantages by row, then turn.
    """
    credits = defaultdict[tuple[int, int], list[float]](list)
    for row in rows:
        for number, credit in enumerate(row[CREDITS]):
            credits[row["extra_info"]["seat"], number].append(credit)
    means = {turn: fmean(found) for turn, found in credits.items()}
    spread = 1.0
    if by_std:
        spread = max((stdev(found) for found in credits.values() if len(found) > 1), default=0.0) + EPSILON
    return [
        [(credit - means[row["extra_info"]["seat"], number]) / spread for number, credit in enumerate(row[CREDITS])]
        for row in rows
    ]


def token_advantages(rows: Sequence[Mapping[str, Any]], *, by_std: bool) -> list[list[float]]:
    """Returns the advantages of each row's tokens: the turn's advantage for sampled tokens, 0 for others."""
    found = list[list[float]]()
    for row, advantages in zip(rows, turn_advantages(rows, by_std=by_std), strict=True):
        tokens = [0.0] * len(row["response_mask"])
        for turn, advantage in zip(own_turns(row["response_mask"]), advantages, strict=True):
            tokens[turn] = [advantage] * (turn.stop - turn.start)
        found.append(tokens)
    return found
