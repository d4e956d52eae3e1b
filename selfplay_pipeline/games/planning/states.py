"""Random states, as DialOp draws them, and states drawn anew given what one seat sees.

Preferences are drawn independently of the places' features, prices and locations. So nothing of what one seat sees
tells anything about what the other sees, and each is drawn anew by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from pydantic import ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.planning.catalogue import (
    CATEGORY,
    FEATURES,
    HAVING,
    LOCATIONS,
    PRICES,
    SINGLE,
    WISHES,
    feature_of,
    first_places,
)
from selfplay_pipeline.games.planning.rules import (
    AGENT,
    BUDGETS,
    MOST_WEIGHT,
    AnyPreference,
    Budget,
    Liking,
    OfCategory,
    Place,
    PlanningConfig,
    PlanningState,
    Visit,
)

TRIES = 1_000
"""Maximum number of drawn states until one is legal."""
T = TypeVar("T")


def sample_state(config: PlanningConfig, rng: np.random.Generator) -> PlanningState:
    """Returns a random state; draws again until two itineraries have different scores.

    Raises:
        UserError: The configuration admits no state.
    """
    return _legal(lambda: (draw_places(config, rng), draw_preferences(config, rng), weight(rng)))


def redraw(state: PlanningState, seat: int, config: PlanningConfig, rng: np.random.Generator) -> PlanningState:
    """Returns a state drawn given the view of one seat; see `Game.redraw`."""
    if seat == AGENT:
        return _legal(lambda: (state.places, draw_preferences(config, rng), weight(rng)))
    return _legal(lambda: (draw_places(config, rng), [_unseen(one, rng) for one in state.preferences], weight(rng)))


def check_fits(config: PlanningConfig, state: PlanningState) -> None:
    """Raises UserError unless the configuration could have drawn the state, in any order of the places."""
    names = first_places(config.places)
    if {*state.index} != {*names}:
        raise UserError(f"game state: field 'places': not the {config.places} places of game.places")
    for place in state.places:
        number = min(len(_kinds(config, place.category)), config.features_per_place)
        if not {*place.features} <= {*config.kinds} or len(place.features) != number:
            raise UserError(
                f"game state: field 'places': {place.name} must have {number} of the features of game.features"
            )
    if len(state.preferences) > config.preferences:
        raise UserError(
            f"game state: field 'preferences': {len(state.preferences)} preferences, but game.preferences is "
            f"{config.preferences}"
        )
    for wish in state.preferences:
        foreign = isinstance(wish, Liking) and feature_of(wish.feature) not in config.kinds
        if foreign or (isinstance(wish, Visit) and not {*wish.names} <= {*names}):
            raise UserError(f"game state: field 'preferences': the configuration has no {wish.text!r}")


def draw_places(config: PlanningConfig, rng: np.random.Generator) -> list[Place]:
    """Returns the places of a city, with random prices, locations and features."""
    names = first_places(config.places)
    spots = rng.permutation(len(LOCATIONS))[: len(names)].tolist()
    return [_place(config, name, LOCATIONS[spot], rng) for name, spot in zip(names, spots, strict=True)]


def draw_preferences(config: PlanningConfig, rng: np.random.Generator) -> list[AnyPreference]:
    """Returns random preferences: each feature has a wish by a chance of one half, and every other kind has one."""
    names = first_places(config.places)
    found: list[AnyPreference] = [
        _liking(feature, rng) for feature in WISHES if feature_of(feature) in config.kinds and rng.random() >= 0.5
    ]
    found.append(Budget(weight=weight(rng), dollars=_one(BUDGETS, rng)))
    found.append(_visit(names, rng))
    category = _one(_categories(names), rng)
    found.append(OfCategory(weight=weight(rng), category=category, penalize=_coin(rng)))
    return [found[at] for at in rng.permutation(len(found))[: config.preferences]]


def weight(rng: np.random.Generator) -> int:
    """Returns a random weight of a preference."""
    return int(rng.integers(1, MOST_WEIGHT + 1))


def _legal(drawn: Callable[[], tuple[Sequence[Place], Sequence[AnyPreference], int]]) -> PlanningState:
    for _ in range(TRIES):
        places, preferences, travel = drawn()
        try:
            return PlanningState(places=tuple(places), preferences=tuple(preferences), travel=travel)
        except ValidationError:
            continue
    raise UserError("game: no state has two itineraries with different scores; raise game.places")


def _place(config: PlanningConfig, name: str, location: tuple[float, float], rng: np.random.Generator) -> Place:
    category = CATEGORY[name]
    kinds = sorted(_some(_kinds(config, category), config.features_per_place, rng), key=HAVING[category].index)
    return Place(
        name=name,
        category=category,
        price=_one(PRICES[category], rng),
        location=location,
        features={kind: _one(FEATURES[kind], rng) for kind in kinds},
    )


def _kinds(config: PlanningConfig, category: str) -> list[str]:
    return [kind for kind in HAVING[category] if kind in config.kinds]


def _liking(feature: str, rng: np.random.Generator) -> Liking:
    if WISHES[feature]:
        wish = _one(WISHES[feature], rng)
        return Liking(weight=weight(rng), feature=feature, bad=wish.bad, good=wish.good)
    values = FEATURES[feature]
    if feature in SINGLE:
        value, good = (_one(values, rng),), _coin(rng)
        return Liking(weight=weight(rng), feature=feature, bad=() if good else value, good=value if good else ())
    chosen = tuple(_some(values, 1 + int(rng.integers(len(values))), rng))
    bad = int(rng.integers(len(chosen)))
    return Liking(weight=weight(rng), feature=feature, bad=chosen[:bad], good=chosen[bad:])


def _visit(names: Sequence[str], rng: np.random.Generator) -> Visit:
    if rng.random() < 0.25:
        chosen = [_one(names, rng)]
    else:
        category = _one(_categories(names), rng)
        own = [name for name in names if CATEGORY[name] == category]
        chosen = _some(own, 1 + int(rng.integers(max(1, min(3, len(own)) - 1))), rng)
    return Visit(weight=weight(rng), names=tuple(chosen), penalize=_coin(rng))


def _unseen(wish: AnyPreference, rng: np.random.Generator) -> AnyPreference:
    """Returns a preference with the same text, and all else drawn anew."""
    change: dict[str, int] = {"weight": weight(rng)}
    if isinstance(wish, OfCategory):
        change["penalize"] = _coin(rng)
    return wish.model_copy(update=change)


def _categories(names: Sequence[str]) -> list[str]:
    return [*dict.fromkeys(CATEGORY[name] for name in names)]


def _one(values: Sequence[T], rng: np.random.Generator) -> T:
    return values[int(rng.integers(len(values)))]


def _some(values: Sequence[T], number: int, rng: np.random.Generator) -> list[T]:
    return [values[at] for at in rng.permutation(len(values))[:number].tolist()]


def _coin(rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.5)
