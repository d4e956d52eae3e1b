"""DialOp's city, which is in data/dialop with its licence: places, kinds of features, wishes and locations."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

FOLDER = Path(__file__).parent / "data" / "dialop"
Value = bool | float | str
"""Value of a feature."""
MILES = 69
"""Miles by degree, in both directions, as DialOp counts them."""
_DATA = yaml.safe_load((FOLDER / "planning_places.yaml").read_text("utf-8"))
_SHORT = re.compile(r"^(?:has|good for|accepts|open|live)[ _]|[ _](?:options|seating|type)$")


class Wish(NamedTuple):
    """One set of values that users may like, with the text that says so."""

    bad: tuple[Value, ...]
    good: tuple[Value, ...]
    text: str


def value_of(data: Any) -> Value:
    """Returns a value of a feature as states have it: numbers are floats."""
    return data if isinstance(data, bool | str) else float(data)


def _values(data: Sequence[Any]) -> tuple[Value, ...]:
    return tuple(map(value_of, data))


CATEGORY: dict[str, str] = {place["name"]: place["type"] for place in _DATA["all_events"]}
"""Category of each place, by name, in DialOp's order."""
CATEGORIES = tuple(_DATA["all_types"])
PRICES = {
    kind: [*range(low, high, 10)] for kind, about in _DATA["all_types"].items() for low, high in [about["price_range"]]
}
"""Possible prices of each category's places in dollars."""
FEATURES: dict[str, tuple[Value, ...]] = {
    name: _values(about.get("values", (True, False))) for name, about in _DATA["features"].items()
}
"""Possible values of each kind of feature."""
HAVING = {
    kind: [name for name, about in _DATA["features"].items() if kind in about.get("event_types", CATEGORIES)]
    for kind in CATEGORIES
}
"""Kinds of features that each category's places may have."""
WISHES: dict[str, tuple[Wish, ...]] = {
    name: tuple(
        Wish(_values(bad), _values(good), one["description"])
        for one in about.get("prefs", ())
        for bad, good in [one["value_sets"]]
    )
    for name, about in _DATA["preferences"].items()
}
"""Possible wishes by feature; none where the wished values are drawn.

DialOp writes two of these features with an underscore, `has_parking` and `has_takeout`. No place has a feature of this
name, so these two wishes never count.
"""
SINGLE = frozenset(name for name, about in _DATA["preferences"].items() if about["generate"] == "any_1")
"""Features of which a user wishes or avoids a single value."""
LOCATIONS: list[tuple[float, float]] = [
    (longitude, latitude)
    for one in json.loads((FOLDER / "planning_locations.geojson").read_text("utf-8"))["features"]
    for longitude, latitude in [one["geometry"]["coordinates"]]
]
"""Longitude and latitude of the points at which places may lie."""


def feature_of(wish: str) -> str:
    """Returns the kind of feature of a wish, `has parking` for `has_parking`."""
    return wish.replace("_", " ")


def short(feature: str) -> str:
    """Returns the one word that names a feature in short texts, such as `kids` for `good for kids`."""
    return _SHORT.sub("", feature)


def first_places(number: int) -> list[str]:
    """Returns the names of that many places, one of each category in turn."""
    by_category = defaultdict(list)
    for name, category in CATEGORY.items():
        by_category[category].append(name)
    rank = {name: (names.index(name), at) for at, names in enumerate(by_category.values()) for name in names}
    chosen = sorted(CATEGORY, key=rank.__getitem__)[:number]
    return [name for name in CATEGORY if name in chosen]


def show(value: Value) -> str:
    """Returns a value of a feature as text: `yes`, `4.5`, `thai`."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:g}"
