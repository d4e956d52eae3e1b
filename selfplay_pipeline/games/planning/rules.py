"""Planning: the configuration, a state, and the score of an itinerary. Pure.

Rules: Lin, Tomlin, Andreas, Eisner, "Decision-Oriented Dialogue for Human-AI Collaboration" (arXiv 2305.20076). The
scores, best and worst ones included, equal those of all 113 recorded games between people.

The score is linear in the weights of the user's preferences. A preference contributes its weight times an array: one
number for each place, or one for each itinerary. All itineraries are one array with an axis for each of the three
stops, so that the best and the worst one are found with a few operations on arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from selfplay_pipeline.games.planning.catalogue import (
    CATEGORIES,
    CATEGORY,
    FEATURES,
    HAVING,
    MILES,
    SINGLE,
    WISHES,
    Value,
    feature_of,
    show,
)
from selfplay_pipeline.games.tagged_session import TaggedSettings

USER, AGENT = range(2)
"""Seats."""
ROLES = ("user", "agent")
STOPS = 3
MOST_PREFERENCES, MOST_WEIGHT = 10, 10
DISLIKE = "don't like"
BUDGETS = tuple(range(30, 100, 10))

Itinerary = tuple[str, str, str]
"""Names of three places, in the order of the day."""
Array = NDArray[np.float64]
_Weight = Annotated[int, Field(strict=True, ge=1, le=MOST_WEIGHT)]


class PlanningConfig(TaggedSettings):
    """Size of the states, protocol and limits of the game."""

    name: Literal["planning"] = "planning"
    """Name of the game."""
    places: Annotated[int, Field(ge=STOPS + 1, le=len(CATEGORY))] = len(CATEGORY)
    """Number of places of the city, one of each category in turn."""
    features: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Kinds of features that places may have and users may care about; None for all 17 of them."""
    features_per_place: Annotated[int, Field(ge=1, le=5)] = 5
    """Number of features of a place; fewer if its category has no more kinds."""
    preferences: Annotated[int, Field(ge=1, le=MOST_PREFERENCES)] = MOST_PREFERENCES
    """Largest number of the user's preferences, besides the one for short travel."""
    max_searches: Annotated[int, Field(ge=0)] = 5
    """Number of searches of the agent in a row after which it must speak or propose."""
    protocol: Literal["free", "fixed"] = "free"
    """Rule of turns, `free` or `fixed`.

    With `free`, user and agent talk, the agent proposes, and the user accepts or rejects. With `fixed`, they say
    exactly `messages` messages in turn, beginning with the user; then the agent proposes once, and that is the outcome.
    """
    messages: Annotated[int, Field(ge=1)] = 1
    """Number of messages before the proposal, with `protocol: fixed`; odd, so that the agent proposes."""
    max_length: Annotated[int, Field(ge=1)] = 40
    """Maximum number of turns in an episode, counting both players, searches and illegal turns. Without agreement by
    then, all rewards are 0."""

    @field_validator("features")
    @classmethod
    def _known(cls, features: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if unknown := [name for name in features or () if name not in FEATURES]:
            raise ValueError(f"there is no feature {unknown[0]!r}; the features are {', '.join(FEATURES)}")
        return features

    @model_validator(mode="after")
    def _agent_proposes(self) -> Self:
        if self.protocol == "fixed" and self.messages % 2 == 0:
            raise ValueError(f"messages {self.messages} is even, so that the user would propose; give an odd number")
        return self

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of features, all of them by default."""
        return self.features or tuple(FEATURES)

    @property
    def has_dialops_states(self) -> bool:
        """Whether the states are those of DialOp, and people's turns are legal."""
        default = PlanningConfig()
        names = ("places", "features", "features_per_place", "preferences", "protocol")
        return all(getattr(self, name) == getattr(default, name) for name in names)


class Place(BaseModel):
    """One place of the city.

    Attributes:
        location: Longitude and latitude.
        features: Values of some features, by kind.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    category: str
    price: Annotated[int, Field(strict=True, ge=0, le=1000)]
    location: tuple[Annotated[float, Field(ge=-180, le=180)], Annotated[float, Field(ge=-90, le=90)]]
    features: dict[str, Value]

    @model_validator(mode="after")
    def _exists(self) -> Self:
        if CATEGORY.get(self.name) != self.category:
            raise ValueError(f"there is no {self.category} {self.name!r}")
        for feature, value in self.features.items():
            if feature not in HAVING[self.category] or not _is_one_of(value, FEATURES[feature]):
                raise ValueError(f"{self.name} cannot have {feature!r}: {value!r}")
        return self


class Preference(BaseModel):
    """Preference of the user.

    Attributes:
        weight: Points that it gives or costs, which no player sees.
    """

    model_config = ConfigDict(frozen=True)

    weight: _Weight


class Liking(Preference):
    """Wish for some values of a feature: each place with a good one gains the weight, each with a bad one loses it."""

    kind: Literal["liking"] = "liking"
    feature: str
    bad: tuple[Value, ...] = ()
    good: tuple[Value, ...] = ()

    @model_validator(mode="after")
    def _exists(self) -> Self:
        values = FEATURES[feature_of(self.feature)] if self.feature in WISHES else ()
        if not all(_is_one_of(value, values) for value in self.bad + self.good):
            raise ValueError(f"no user can wish this of {self.feature!r}")
        return self

    @property
    def text(self) -> str:
        """The preference as the user reads it."""
        for wish in WISHES[self.feature]:
            if (wish.bad, wish.good) == (self.bad, self.good):
                return wish.text
        if self.feature in SINGLE:
            return f"{'like' if self.good else DISLIKE} {show((self.good or self.bad)[0])} places"
        parts = ((DISLIKE, self.bad), ("like", self.good))
        return ", ".join(f"{how}: {', '.join(map(show, values))}" for how, values in parts if values)

    def each(self, places: Sequence[Place]) -> Array:
        """Returns the number by which each place multiplies the weight."""
        found = np.zeros(len(places))
        for at, place in enumerate(places):
            if self.feature in place.features:
                value = place.features[self.feature]
                found[at] = -1 if value in self.bad else int(value in self.good)
        return found


class Whole(Preference):
    """Preference about a whole itinerary."""

    def all(self, places: Sequence[Place]) -> Array:
        """Returns the number by which each itinerary multiplies the weight, with an axis for each stop."""
        raise NotImplementedError


class Budget(Whole):
    """The prices of all places together are at most `dollars`, or the itinerary loses the weight."""

    kind: Literal["budget"] = "budget"
    dollars: Annotated[int, Field(strict=True, ge=1, le=1000)]

    @property
    def text(self) -> str:
        return f"keep budget below ${self.dollars}"

    def all(self, places: Sequence[Place]) -> Array:
        prices = np.array([place.price for place in places])
        return np.where(_sums(prices) > self.dollars, -1.0, 0.0)


class Wanted(Whole):
    """One of some places is in the itinerary, which then gains the weight.

    Attributes:
        penalize: Whether an itinerary without any of them loses the weight.
    """

    penalize: bool

    def has(self, place: Place) -> bool:
        """Whether a place is one of them."""
        raise NotImplementedError

    def all(self, places: Sequence[Place]) -> Array:
        own = np.array([self.has(place) for place in places])
        return np.where(_sums(1 * own) > 0, 1.0, -1.0 if self.penalize else 0.0)


class Visit(Wanted):
    """One of some named places, all of one category, is in the itinerary."""

    kind: Literal["visit"] = "visit"
    names: Annotated[tuple[str, ...], Field(min_length=1)]

    @field_validator("names")
    @classmethod
    def _exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in CATEGORY]:
            raise ValueError(f"there is no place {unknown[0]!r}")
        return names

    @property
    def text(self) -> str:
        if len(self.names) == 1:
            return f"{'definitely want to go to' if self.penalize else 'heard good things about'} {self.names[0]}"
        listed = ", ".join(self.names)
        if self.penalize:
            return f"definitely want to check out Dan's recommendations: {listed}"
        return f"heard these {CATEGORY[self.names[0]]}s were good: {listed}"

    def has(self, place: Place) -> bool:
        return place.name in self.names


class OfCategory(Wanted):
    """A place of a category is in the itinerary. The text does not say whether its absence costs points."""

    kind: Literal["category"] = "category"
    category: str

    @field_validator("category")
    @classmethod
    def _exists(cls, category: str) -> str:
        if category not in CATEGORIES:
            raise ValueError(f"there is no category {category!r}")
        return category

    @property
    def text(self) -> str:
        return f"go to at least one {self.category}"

    def has(self, place: Place) -> bool:
        return place.category == self.category


AnyPreference = Annotated[Liking | Budget | Visit | OfCategory, Field(discriminator="kind")]
TRAVEL = "minimize travel distance"
"""The user's last preference, as the user reads it."""


class Points(NamedTuple):
    """Points of an itinerary, as the user reads them.

    Attributes:
        places: Points of each place by the wishes for features.
        legs: Points of the way from each place to the next.
        whole: Points of each preference about whole itineraries, in the order of the preferences.
    """

    places: tuple[int, ...]
    legs: tuple[int, ...]
    whole: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(map(sum, self))


class PlanningState(BaseModel):
    """One problem.

    Attributes:
        places: Places of the city, which the agent sees.
        preferences: Preferences of the user, who does not see their weights.
        travel: Points that the user loses for each mile of the way, which no player sees.
    """

    model_config = ConfigDict(frozen=True)

    places: Annotated[tuple[Place, ...], Field(min_length=STOPS + 1, max_length=len(CATEGORY))]
    preferences: Annotated[tuple[AnyPreference, ...], Field(max_length=MOST_PREFERENCES)]
    travel: _Weight

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if len(self.index) < len(self.places):
            raise ValueError("field 'places': two places have the same name")
        if not self.span:
            raise ValueError("field 'places': all itineraries have the same score")
        return self

    def __eq__(self, other: object) -> bool:
        # What was computed from the fields takes no part.
        return isinstance(other, PlanningState) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    @cached_property
    def index(self) -> Mapping[str, int]:
        """Position of each place, by name."""
        return {place.name: at for at, place in enumerate(self.places)}

    @cached_property
    def miles(self) -> Array:
        """Distance between each two places."""
        return miles_between(self.places)

    @cached_property
    def each(self) -> Array:
        """Points of each place by the wishes for features."""
        return each_place([(wish, wish.weight) for wish in self.preferences], self.places)

    @cached_property
    def scores(self) -> Array:
        """Score of each itinerary, with an axis for each stop; not a number where a place is repeated."""
        return scores([(wish, wish.weight) for wish in self.preferences], self.places, legs(self.miles, self.travel))

    @cached_property
    def rewards(self) -> Array:
        """Reward of each itinerary: (score − worst) / (best − worst)."""
        return np.asarray((self.scores - self.worst) / self.span)

    @cached_property
    def worst(self) -> int:
        return int(np.nanmin(self.scores))

    @cached_property
    def span(self) -> int:
        """Difference between the best and the worst score."""
        return int(np.nanmax(self.scores)) - self.worst

    @cached_property
    def best_itinerary(self) -> Itinerary:
        """First of the itineraries with the best score."""
        return itinerary_at(self.places, int(np.nanargmax(self.scores)))

    def at(self, itinerary: Itinerary) -> tuple[int, ...]:
        """Returns the positions of the places of an itinerary."""
        return tuple(self.index[name] for name in itinerary)

    def points(self, itinerary: Itinerary) -> Points:
        """Returns the points of an itinerary."""
        first, second, third = at = self.at(itinerary)
        chosen = [self.places[place] for place in at]
        ways = legs(self.miles, self.travel)
        return Points(
            tuple(int(self.each[place]) for place in at),
            (int(ways[first, second]), int(ways[second, third])),
            tuple(int(wish.weight * wish.all(chosen)[0, 1, 2]) for wish in self.preferences if isinstance(wish, Whole)),
        )


Weighted = Sequence[tuple[Any, float]]
"""Preferences, each with a weight."""


def scores(preferences: Weighted, places: Sequence[Place], ways: Array) -> Array:
    """Returns the score of each itinerary, with an axis for each stop; not a number where a place is repeated.

    Args:
        ways: Points of the way between each two places.
    """
    found = _sums(each_place(preferences, places)) + ways[:, :, None] + ways[None, :, :] + repeated(len(places))
    for wish, weight in preferences:
        if isinstance(wish, Whole):
            found += weight * wish.all(places)
    return np.asarray(found)


def each_place(preferences: Weighted, places: Sequence[Place]) -> Array:
    """Returns the points of each place by the wishes for features."""
    found = [weight * wish.each(places) for wish, weight in preferences if isinstance(wish, Liking)]
    return np.asarray(np.sum([np.zeros(len(places)), *found], axis=0))


def miles_between(places: Sequence[Place]) -> Array:
    """Returns the distance between each two places, rounded to a tenth of a mile as in DialOp."""
    at = np.array([place.location for place in places])
    return np.asarray(np.rint(np.sqrt(np.square(at[:, None] - at[None]).sum(axis=-1)) * MILES * 10) / 10)


def legs(miles: Array, weight: float) -> Array:
    """Returns the points of the way between each two places, cut to whole points as in DialOp."""
    return np.asarray(np.trunc(-weight * miles))


@lru_cache
def repeated(number: int) -> Array:
    """Returns an array of all itineraries: 0, and not a number where a place is repeated."""
    same = np.eye(number, dtype=bool)
    return np.where(same[:, :, None] | same[:, None, :] | same[None], np.nan, 0.0)


def itinerary_at(places: Sequence[Place], at: int) -> Itinerary:
    """Returns the itinerary at a position of the flattened array of all itineraries."""
    first, second, third = (int(place) for place in np.unravel_index(at, (len(places),) * STOPS))
    return places[first].name, places[second].name, places[third].name


def check_itinerary(decision: Any, state: PlanningState) -> Itinerary:
    """Returns the itinerary of a decision.

    Raises:
        ValueError: The decision does not name three different places of the state.
    """
    if not isinstance(decision, list | tuple) or [type(name) for name in decision] != [str] * STOPS:
        raise ValueError(f"{decision!r}: does not name three places")
    for at, name in enumerate(decision):
        if name not in state.index or name in decision[:at]:
            raise ValueError(f"{name!r} is {'named twice' if name in state.index else 'no place of the state'}")
    return decision[0], decision[1], decision[2]


def _sums(values: NDArray[Any]) -> NDArray[Any]:
    """Returns the sum over the three stops of each itinerary."""
    return np.asarray(values[:, None, None] + values[None, :, None] + values[None, None, :])


def _is_one_of(value: Value, values: Sequence[Value]) -> bool:
    return any(type(value) is type(other) and value == other for other in values)
