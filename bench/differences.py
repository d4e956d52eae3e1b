"""Finds the first difference between two JSON values, except for renamed, new and incomparable fields.

Patterns name fields by their keys and positions, joined by dots: `turns.*.text` is the text of every turn. A pattern
also covers everything inside the field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

Place = tuple[str, ...]
"""Path of a value: its keys and positions."""


@dataclass(frozen=True)
class Fields:
    """Allowed differences.

    Attributes:
        renamed: Names of the fields that now hold the value of an earlier field, by the earlier field's pattern. Each
            `*` in a name stands for the part that matches the same `*` of the pattern.
        added: Reason for each field, by pattern, that the earlier value may lack.
        apart: Reason for each field, by pattern, that is not compared.
    """

    renamed: Mapping[str, Sequence[str]] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    apart: Mapping[str, str] = field(default_factory=dict)

    def described(self) -> list[str]:
        """Returns a line for each entry."""
        return [
            *(f"{old} is now {' and '.join(names)}" for old, names in self.renamed.items()),
            *(f"{name} may be new: {why}" for name, why in self.added.items()),
            *(f"{name} is not compared: {why}" for name, why in self.apart.items()),
        ]


NONE = Fields()


def first_difference(old: Any, new: Any, fields: Fields = NONE, tolerance: float = 0.0) -> str | None:
    """Returns the place of the first difference with both values there; None if there is no difference.

    Args:
        old: The earlier value.
        new: The later value.
        fields: The allowed differences.
        tolerance: Largest difference of two numbers, relative for numbers above 1. With 0, values must also have the
            same type.
    """
    before = {to: value for place, value in leaves(old).items() for to in _moved(place, fields.renamed)}
    now = leaves(new)
    for place in before | now:
        if _named(place, fields.apart):
            continue
        where = ".".join(place)
        if place not in before:
            if _named(place, fields.added):
                continue
            return f"{where} is new: {now[place]!r}"
        if place not in now:
            return f"{where} is gone, and was {before[place]!r}"
        if not _alike(before[place], now[place], tolerance):
            return f"{where} is {now[place]!r}, and was {before[place]!r}"
    return None


def first_different_line(
    old: Sequence[Any], new: Sequence[Any], fields: Fields = NONE, tolerance: float = 0.0
) -> str | None:
    """Returns the first difference of two lists, whose members are counted from 1 like the lines of a file."""
    for number, (before, now) in enumerate(zip(old, new, strict=False), start=1):
        difference = first_difference(before, now, fields, tolerance)
        if difference is not None:
            return f"line {number}: {difference}"
    return None if len(old) == len(new) else f"{len(new)} lines, and there were {len(old)}"


def leaves(value: Any, place: Place = ()) -> dict[Place, Any]:
    """Returns all values that contain no others, by place; empty lists and objects count as such values."""
    if not isinstance(value, dict | list) or not value:
        return {place: value}
    members = value.items() if isinstance(value, dict) else enumerate(value)
    return {at: leaf for key, member in members for at, leaf in leaves(member, (*place, str(key))).items()}


def _moved(place: Place, renamed: Mapping[str, Sequence[str]]) -> list[Place]:
    for pattern, names in renamed.items():
        stars = _match(pattern, place)
        if stars is not None:
            inside = place[pattern.count(".") + 1 :]
            return [(*_filled(name, stars), *inside) for name in names]
    return [place]


def _filled(name: str, stars: Sequence[str]) -> list[str]:
    known = iter(stars)
    return [next(known) if part == "*" else part for part in name.split(".")]


def _named(place: Place, patterns: Mapping[str, str]) -> bool:
    return any(_match(pattern, place) is not None for pattern in patterns)


def _match(pattern: str, place: Place) -> list[str] | None:
    """Returns the keys at a place that match each `*` of a pattern; None if the pattern does not match."""
    parts = pattern.split(".")
    if len(parts) > len(place) or not all(map(fnmatchcase, place, parts)):
        return None
    return [key for key, part in zip(place, parts, strict=False) if part == "*"]


def _alike(old: Any, new: Any, tolerance: float) -> bool:
    if tolerance and _is_number(old) and _is_number(new) and math.isfinite(old) and math.isfinite(new):
        return bool(abs(new - old) <= tolerance * max(1.0, abs(old)))
    return type(old) is type(new) and (old == new or (old != old and new != new))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
