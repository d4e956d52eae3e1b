"""Advantages of single turns, where each has a credit of its own. Pure; imports no torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from selfplay_pipeline.convert.rows import CREDITS, own_turns

EPSILON = 1e-6
"""What verl's GRPO adds to a standard deviation."""


def turn_advantages(rows: Sequence[Mapping[str, Any]], *, by_std: bool) -> list[list[float]]:
    """The advantage of each own turn: its credit minus the mean of the same turn in the episodes of the group.

    The same turn is the seat's first, second and so on. Where all are credited with the reward and all episodes have as
    many turns, these are GRPO's advantages. A turn that one episode alone has gets 0.

    Args:
        rows: all of one group.
        by_std: divide them by a standard deviation, the largest that any turn's credits have. All turns of a group are
            divided by the same, so that a turn on which little depends weighs little.

    Returns:
        Of each row those of its turns.
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
    """Those of each row's tokens: on own tokens that of their turn, 0 on others."""
    found = list[list[float]]()
    for row, advantages in zip(rows, turn_advantages(rows, by_std=by_std), strict=True):
        tokens = [0.0] * len(row["response_mask"])
        for turn, advantage in zip(own_turns(row["response_mask"]), advantages, strict=True):
            tokens[turn] = [advantage] * (turn.stop - turn.start)
        found.append(tokens)
    return found
