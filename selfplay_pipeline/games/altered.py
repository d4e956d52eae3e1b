"""The search for a replacement message that makes another decision the best one, for the listening test. Pure."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

from selfplay_pipeline.games.base import Altered

CHANGED, SWAPPED = "changed", "swapped"
"""Kinds of alteration. CHANGED replaces one told number by another one; SWAPPED replaces all told numbers by those of a
state drawn anew."""
KINDS = (CHANGED, SWAPPED)

K = TypeVar("K", bound=Hashable)


def first_clear(
    said: Mapping[K, int],
    draw: Callable[[], Mapping[K, int]],
    retold: Callable[[Mapping[K, int]], str],
    read: Callable[[str], Mapping[K, int]],
    judge: Callable[[Mapping[K, int]], tuple[Any, float]],
    *,
    tries: int,
    margin: float,
) -> Altered | None:
    """Returns the first drawn message after which another decision is clearly the best; None if there is none.

    Args:
        said: Numbers that the original message tells.
        draw: Draws other numbers in their place.
        retold: Returns the original message with the drawn numbers.
        read: Returns the numbers that a message tells.
        judge: Returns the best decision with the drawn numbers, as JSON, and its lead. The lead is the smaller one of
            two: with the drawn numbers, that of this decision over the second best one; with the original numbers,
            that of the original best decision over this one.
        tries: Maximum number of drawn messages.
        margin: Minimum lead.
    """
    for _ in range(tries):
        new = draw()
        decision, lead = judge(new)
        text = retold(new)
        if lead >= margin and read(text) == {**said, **new}:
            return Altered(text, decision)
    return None
