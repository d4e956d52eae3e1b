"""Form of a search, in which a person selects what the agent may write as a query."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay_pipeline.games.base import Choice, Part
from selfplay_pipeline.games.planning.catalogue import show
from selfplay_pipeline.games.planning.rules import Place
from selfplay_pipeline.games.planning.search import EXAMPLE

SEARCH = "search"
"""Action of the agent's tool."""
FIELDS = "name, category, price, info"
"""Fields of the results."""
ANY = "any"


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
        query = [f"fields=[{FIELDS}]"]
        query += [f"filters=[{', '.join(wanted)}]"] if wanted else []
        query += [f'sort_by=[distance_to("{names[near - 1]}")]'] if near else []
        return f"[tool] Search({', '.join(query)})"

    return Choice(SEARCH, f"[tool] {EXAMPLE}", parts, write)
