"""Texts of the game: itineraries, and what a user tells of its preferences and its points. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from enum import StrEnum

from selfplay_pipeline.games import tagged_session, tags
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.planning.catalogue import (
    CATEGORIES,
    CATEGORY,
    FEATURES,
    LOCATIONS,
    MILES,
    SINGLE,
    WISHES,
    Value,
    short,
    show,
)
from selfplay_pipeline.games.planning.rules import (
    STOPS,
    AnyPreference,
    Budget,
    Itinerary,
    Liking,
    OfCategory,
    Place,
    Points,
    Visit,
)

FORM = "[propose] FIRST PLACE, SECOND PLACE, THIRD PLACE"
UNKNOWN_WEIGHT = 5
"""Weight of preferences that were told, which tell no weight."""
_BETWEEN, _NUMBER = re.compile(r"\s*(?:[,;\n]|->|→)\s*"), re.compile(r"^\W*[123][.)]")
_WEST, _SOUTH = (min(spot[axis] for spot in LOCATIONS) for axis in (0, 1))
_BY_SHORT = {short(wish): wish for wish in WISHES}
_TEXTS = sorted(
    ((wish.text, feature, wish) for feature, wishes in WISHES.items() for wish in wishes), key=lambda one: -len(one[0])
)
"""Fixed texts of wishes, a text before those that it contains."""
_NAMES = re.compile("|".join(re.escape(name) for name in sorted(CATEGORY, key=len, reverse=True)), re.IGNORECASE)
_NAMED = {tags.folded(name): name for name in CATEGORY}
_SHORT = re.compile(rf"^({'|'.join(_BY_SHORT)})(?: \+ ([^-;]+?))?(?: - ([^;]+))?$")
"""Pattern of a wish in the form that small models learn: `rating + 4 4.5 5 - 1 1.5`."""
_SINGLE = re.compile(rf"\b(don't )?like ({'|'.join(str(v) for name in SINGLE for v in FEATURES[name])}) places")
_DRAWN = re.compile(r"(?:don't like: (?P<bad>\w+(?:, \w+)*?))?(?:, )?(?<!n't )\blike: (?P<good>\w+(?:, \w+)*)")
_BUDGET = re.compile(r"budget (?:below \$?)?(\d{1,4})\b")
_CATEGORY = re.compile(rf"(?:type|at least one) ({'|'.join(CATEGORIES)})\b")
_VISIT = re.compile(
    r"(?P<must>definitely want to (?:go to|check out)|\bmust\b)|heard (?:good things about|these \w+ were good)|\bgo\b"
)
_POINTS = re.compile(r"places((?: -?\d{1,4}\b){3})[,;]? travel((?: -?\d{1,4}\b){2})(?:[,;]? rest((?: -?\d{1,4}\b)+))?")


class ErrorKind(StrEnum):
    """Kinds of illegal actions, for counting."""

    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    MALFORMED = tags.MALFORMED
    EMPTY_MESSAGE = tagged_session.EMPTY_MESSAGE
    NOT_NOW = tagged_session.NOT_NOW
    NOT_YOURS = "not_yours"
    """An action of the other role."""
    NO_PLACE = "no_place"
    """A proposal of a place that does not exist."""
    REPEATED_PLACE = "repeated_place"
    BAD_SEARCH = "bad_search"
    """A search that is not in the query language, or asks for something unknown."""


def parse_itinerary(body: str, places: Iterable[str]) -> Itinerary:
    """Returns the places of a proposal, whose names are separated by commas, arrows or line ends, maybe with numbers.

    Raises:
        ParseError: The text does not name three different places.
    """
    known = {_plain(name): name for name in places}
    found: list[str] = []
    for part in (_NUMBER.sub("", part).strip() for part in _BETWEEN.split(body.strip(" []().\n"))):
        name = known.get(_plain(part))
        if name is None:
            near = get_close_matches(_plain(part), known, 1)
            hint = f"; did you mean {known[near[0]]!r}?" if near else f"; write {FORM}"
            raise ParseError(ErrorKind.NO_PLACE, f"there is no place {part[:40]!r}{hint}")
        if name in found:
            raise ParseError(ErrorKind.REPEATED_PLACE, f"{name} is named twice; name three different places")
        found.append(name)
    if len(found) != STOPS:
        raise ParseError(
            ErrorKind.MALFORMED, f"a proposal has three places, and this one has {len(found)}; write {FORM}"
        )
    return found[0], found[1], found[2]


def format_proposal(places: Itinerary) -> str:
    return f"[propose] {', '.join(places)}"


def features_of(place: Place) -> str:
    """Returns the features of a place in words, such as `rating: 4.5, touristy: no`."""
    return ", ".join(f"{kind}: {show(value)}" for kind, value in place.features.items())


def position_of(place: Place) -> str:
    """Returns the position of a place in miles east and north of the city's southwest corner, such as `3.47, 2.09`."""
    east, north = place.location
    return f"{(east - _WEST) * MILES:.2f}, {(north - _SOUTH) * MILES:.2f}"


def brief(wish: AnyPreference) -> str:
    """Returns a preference in the form that small models learn."""
    match wish:
        case Liking():
            parts = ((" + ", wish.good), (" - ", wish.bad))
            return short(wish.feature) + "".join(sign + " ".join(map(show, values)) for sign, values in parts if values)
        case Budget():
            return f"budget {wish.dollars}"
        case Visit():
            return f"{'must' if wish.penalize else 'go'} {', '.join(wish.names)}"
        case OfCategory():
            return f"type {wish.category}"


def told_preferences(text: str) -> list[AnyPreference]:
    """Returns the preferences that a message tells, in order, by the texts of the game or by their short forms."""
    body, found = tags.untagged(text), list[tuple[int, AnyPreference]]()
    place = 0
    for part in re.split(r"(;|\n)", body):
        found += [(place + at, wish) for at, wish in _told_in(part)]
        place += len(part)
    return [wish for _, wish in sorted(found, key=lambda one: one[0])]


def _told_in(part: str) -> Iterator[tuple[int, AnyPreference]]:
    if brief_form := _SHORT.match(part.strip(" .")):
        feature = _BY_SHORT[brief_form[1]]
        good, bad = (_read(feature, values or "") for values in brief_form.groups()[1:])
        if good or bad:
            yield 0, _liking(feature, bad, good)
        return
    for text, feature, wish in _TEXTS:
        if (at := part.find(text)) >= 0:
            yield at, _liking(feature, wish.bad, wish.good)
            part = part.replace(text, " " * len(text))
    for match in _SINGLE.finditer(part):
        values = ((), (match[2],)) if not match[1] else ((match[2],), ())
        yield from ((match.start(), _liking(feature, *values)) for feature in SINGLE)
    for match in _DRAWN.finditer(part):
        bad, good = (tuple((match[side] or "").split(", ")) if match[side] else () for side in ("bad", "good"))
        for feature in WISHES:
            if {*bad, *good} <= {*FEATURES.get(feature, ())}:
                yield match.start(), _liking(feature, bad, good)
    for match in _BUDGET.finditer(part):
        if 0 < int(match[1]) <= 1000:
            yield match.start(), Budget(weight=UNKNOWN_WEIGHT, dollars=int(match[1]))
    for match in _CATEGORY.finditer(part):
        yield match.start(), OfCategory(weight=UNKNOWN_WEIGHT, category=match[1], penalize=False)
    if (said := _VISIT.search(part)) and (written := _NAMES.findall(part, said.end())):
        names = dict.fromkeys(_NAMED[tags.folded(name)] for name in written)
        yield said.start(), Visit(weight=UNKNOWN_WEIGHT, names=tuple(names), penalize=bool(said["must"]))


def format_points(points: Points) -> str:
    """Returns what a user tells of its points for the last proposal."""
    told = [
        f"{what} {' '.join(map(str, values))}"
        for what, values in zip(("places", "travel", "rest"), points, strict=True)
        if values
    ]
    return ", ".join(told)


def told_points(text: str) -> Points | None:
    """Returns the points that a message tells of the last proposal; None if it tells none."""
    found = _POINTS.search(text)
    return None if found is None else Points(*(tuple(map(int, (numbers or "").split())) for numbers in found.groups()))


def _liking(feature: str, bad: Sequence[Value], good: Sequence[Value]) -> Liking:
    return Liking(weight=UNKNOWN_WEIGHT, feature=feature, bad=tuple(bad), good=tuple(good))


def _read(feature: str, text: str) -> tuple[Value, ...]:
    values = {show(value): value for value in FEATURES[feature.replace("_", " ")]}
    return tuple(values[word] for word in text.split() if word in values)


def _plain(name: str) -> str:
    return re.sub(r"\W+", " ", name.replace("'", "").replace("’", "")).strip().lower()
