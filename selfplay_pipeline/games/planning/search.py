"""The agent's tool: searches among the places in DialOp's query language, and the form where a person selects one.

`Search(fields=[name, price], filters=[category == restaurant, price <= 40], text_query="live music",
sort_by=[distance_to(The Mall), price], limit=3)`: all parts but the fields may be missing. Names of several words need
no quotes: each run of words becomes one string before Python's parser reads the query. Nothing is evaluated.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from selfplay_pipeline.games import tags
from selfplay_pipeline.games.base import Choice, ParseError, Part
from selfplay_pipeline.games.planning.catalogue import FEATURES, Value, show
from selfplay_pipeline.games.planning.rules import Place, miles_between
from selfplay_pipeline.games.planning.text import ErrorKind, features_of

LONGEST = 500
"""Maximum number of characters of a query."""
SEARCH = "search"
"""Action of the agent's tool."""
RESULT = "name, category, price, info"
"""Fields of the results of a search that a person selects."""
ANY = "any"
EXAMPLE = "Search(fields=[name, price], filters=[category == park], sort_by=[distance_to(The Mall)], limit=3)"
_TAG = re.compile(r"\[\s*(?:tool|search)\s*\]\W*", re.IGNORECASE)
_BARE = re.compile(r"^\W*(?=Search\s*\()", re.IGNORECASE)
_WORDS = re.compile(
    r"\"[^\"\n]*\"|(?<!\w)'(?:[^'\n]|'(?=\w))*'(?!\w)|(?P<words>[A-Za-z_][\w'’.-]*(?:[ ]+[A-Za-z][\w'’.-]*)*)"
)
"""Pattern of a quoted string, or of a run of bare words."""
PARTS = ("fields", "filters", "text_query", "sort_by", "limit")
SAME = {"etype": "category", "est_price": "price", "features": "info"}
"""Other names of fields, which DialOp uses inside."""
OWN = ("name", "category", "price", "distance", "info")
TRUTH = {"true": "yes", "false": "no"}
COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: lambda one, other: one == other,
    ast.GtE: lambda one, other: one >= other,
    ast.LtE: lambda one, other: one <= other,
}


@dataclass
class Query:
    """One search.

    Attributes:
        fields: Fields of each result besides its name.
        filters: Functions of a place that must all be true.
        text: Text that the description of a place must have.
        keys: Fields by which results are sorted, the first one first.
        miles: Distance of each place from the place of `distance_to`, by name.
    """

    fields: list[str] = field(default_factory=list)
    filters: list[Callable[[Place], bool]] = field(default_factory=list)
    text: str = ""
    keys: list[str] = field(default_factory=list)
    miles: dict[str, float] = field(default_factory=dict)
    limit: int | None = None

    def value(self, place: Place, name: str) -> Value | None:
        """Returns the value of a field of a place; None for a feature that it does not have."""
        match name:
            case "name" | "category":
                return str(getattr(place, name))
            case "price":
                return float(place.price)
            case "info":
                return features_of(place)
            case "distance":
                return self.miles[place.name]
            case _:
                return place.features.get(name)

    def order(self, place: Place, name: str) -> Any:
        """Returns the sort key of a place: places without the field come last, `yes` before `no`."""
        value = self.value(place, name)
        return (value is None, not value if isinstance(value, bool) else value or 0)


def query_in(text: str) -> str | None:
    """Returns the query of a turn that is a search, `[tool] Search(...)` or `Search(...)` alone; None for other turns.

    Raises:
        ParseError: The turn has another action too.
    """
    found = _TAG.search(text) or _BARE.match(text)
    if found is None:
        return None
    if tags.TAG.search(text):
        raise ParseError(ErrorKind.SEVERAL_ACTIONS, "a turn is one action, and a search is one; write it alone")
    return text[found.end() :].strip()


def search(text: str, places: Sequence[Place]) -> str:
    """Returns the result of a query as text.

    Raises:
        ParseError: The query is not in the language, or asks for something unknown; the message is one line.
    """
    query = read(text, places)
    found = [p for p in places if all(keep(p) for keep in query.filters) and query.text.lower() in description(p)]
    for name in reversed(query.keys):
        found.sort(key=lambda place, name=name: query.order(place, name))  # type: ignore[misc]
    found = found[: query.limit]
    if not found:
        return "Search Results: No results"
    rows = [[p.name, *(_shown(query.value(p, name)) for name in query.fields)] for p in found]
    return "\n".join([f"Search Results ({len(found)}):", *map("|".join, [["name", *query.fields], *rows])])


def _shown(value: Value | None) -> str:
    return "" if value is None else show(value)


def description(place: Place) -> str:
    """Returns the text that a text query searches: name, category, the features that a place has, other values."""
    own = [kind if value is True else f"{kind}: {show(value)}" for kind, value in place.features.items() if value]
    return "; ".join([place.name, place.category, *own]).lower()


def read(text: str, places: Sequence[Place]) -> Query:
    """Returns the query of a text."""
    call, query, parts = _parsed(text), Query(), dict[str, ast.expr]()
    for part in call.keywords:
        if part.arg not in PARTS:
            raise _bad(f"there is no part {part.arg!r}; the parts are {', '.join(PARTS)}")
        if part.arg in parts:
            raise _bad(f"{part.arg} is given twice")
        parts[part.arg] = part.value
    if call.args or "fields" not in parts:
        raise _bad(f"name its parts and the fields to return, such as {EXAMPLE}")
    for item in _listed(parts.get("sort_by")):
        if isinstance(item, ast.Call):
            if query.miles:
                raise _bad("distance_to is given twice")
            query.miles = _miles(item, places)
        query.keys.append("distance" if isinstance(item, ast.Call) else _field(item))
    query.fields = [*dict.fromkeys([*map(_field, _listed(parts["fields"])), *query.keys])]
    if "distance" in query.fields and not query.miles:
        raise _bad("the field distance needs sort_by=[distance_to(PLACE)]")
    if "info" in query.keys:
        raise _bad("results cannot be sorted by info")
    query.fields = [name for name in query.fields if name != "name"]
    query.filters = [_filter(item, query) for item in _listed(parts.get("filters"))]
    query.text = _word(parts["text_query"]) if "text_query" in parts else ""
    query.limit = _limit(parts["limit"]) if "limit" in parts else None
    return query


def search_form(places: Sequence[Place]) -> Choice:
    """Returns the choice of a search: places of a category, up to a price, with a feature, the nearest ones first."""
    categories = [*dict.fromkeys(place.category for place in places)]
    prices = sorted({place.price for place in places})
    features = sorted({(kind, show(value)) for place in places for kind, value in place.features.items()})
    names = [place.name for place in places]
    filters = [
        [f"category == {category}" for category in categories],
        [f"price <= {price}" for price in prices],
        [f"{kind} == {value}" for kind, value in features],
    ]
    parts = [
        Part("category", (ANY, *categories), chosen=0),
        Part("price", (ANY, *(f"up to ${price}" for price in prices)), chosen=0),
        Part("feature", (ANY, *(f"{kind}: {value}" for kind, value in features)), chosen=0),
        Part("the nearest first to", ("any place", *names), chosen=0),
    ]

    def write(selected: Sequence[int]) -> str:
        *chosen, near = selected
        wanted = [of[number - 1] for of, number in zip(filters, chosen, strict=True) if number]
        query = [f"fields=[{RESULT}]"]
        query += [f"filters=[{', '.join(wanted)}]"] if wanted else []
        query += [f'sort_by=[distance_to("{names[near - 1]}")]'] if near else []
        return f"[tool] Search({', '.join(query)})"

    return Choice(SEARCH, f"[tool] {EXAMPLE}", parts, write)


def _parsed(text: str) -> ast.Call:
    found = None
    if len(text) > LONGEST:
        raise _bad(f"a query has at most {LONGEST} characters")
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        found = ast.parse(_WORDS.sub(_quoted, text.replace("\\", " ").rstrip("`.; \n")), mode="eval").body
    if not isinstance(found, ast.Call) or not isinstance(found.func, ast.Name) or found.func.id.lower() != "search":
        raise _bad(f"this is no query; write one such as {EXAMPLE}")
    return found


def _quoted(match: re.Match[str]) -> str:
    words = match["words"]
    if words is None or (words.isidentifier() and not keyword.iskeyword(words)):
        return match[0]
    return repr(words)


def _listed(item: ast.expr | None) -> Sequence[ast.expr]:
    if item is None:
        return ()
    return item.elts if isinstance(item, ast.List | ast.Tuple) else [item]


def _miles(item: ast.Call, places: Sequence[Place]) -> dict[str, float]:
    if not isinstance(item.func, ast.Name) or item.func.id != "distance_to" or len(item.args) != 1 or item.keywords:
        raise _bad("results can be sorted by fields and by distance_to(PLACE)")
    wanted, names = _word(item.args[0]), [place.name for place in places]
    for at, name in enumerate(names):
        if name.lower() == wanted.lower():
            return dict(zip(names, miles_between(places)[at].tolist(), strict=True))
    raise _bad(f"there is no place {wanted!r}")


def _field(item: ast.expr) -> str:
    name = SAME.get(_word(item), _word(item))
    if name not in OWN and name not in FEATURES:
        raise _bad(f"there is no field {name!r}; the fields are {', '.join((*OWN, *FEATURES))}")
    return name


def _filter(item: ast.expr, query: Query) -> Callable[[Place], bool]:
    if not isinstance(item, ast.Compare) or len(item.ops) != 1 or type(item.ops[0]) not in COMPARE:
        raise _bad("a filter is FIELD == VALUE, FIELD >= NUMBER or FIELD <= NUMBER")
    name, operator, wanted = _field(item.left), type(item.ops[0]), _literal(item.comparators[0])
    if name in ("distance", "info"):
        raise _bad(f"results cannot be filtered by {name}; try text_query or sort_by")
    is_number = name == "price" or (name in FEATURES and isinstance(FEATURES[name][0], float))
    if is_number != isinstance(wanted, float) or (operator is not ast.Eq and not is_number):
        raise _bad(f"{name} is {'a number' if is_number else 'compared with == and a word'}")

    def keep(place: Place) -> bool:
        value = query.value(place, name)
        if value is None or isinstance(wanted, float):
            return value is not None and COMPARE[operator](value, wanted)
        return show(value).lower() == TRUTH.get(wanted.lower(), wanted.lower())

    return keep


def _limit(item: ast.expr) -> int:
    if not isinstance(item, ast.Constant) or type(item.value) is not int or item.value < 1:
        raise _bad("limit must be a whole number above 0")
    return item.value


def _literal(item: ast.expr) -> float | str:
    number, sign = item, 1
    if isinstance(item, ast.UnaryOp) and isinstance(item.op, ast.USub):
        number, sign = item.operand, -1
    if isinstance(number, ast.Constant) and type(number.value) in (int, float):
        return sign * float(str(number.value))  # text, because int has no largest value
    return _word(item)


def _word(item: ast.expr) -> str:
    if isinstance(item, ast.Name):
        return item.id
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return item.value
    raise _bad("a name or text is expected in place of something else")


def _bad(what: str) -> ParseError:
    return ParseError(ErrorKind.BAD_SEARCH, f"search: {what}")
