"""Deal or No Deal: the configuration, a state, and the value of a split of its items. Pure.

Rules: Lewis, Yarats, Dauphin, Parikh, Batra, "Deal or No Deal? End-to-End Learning for Negotiation Dialogues" (arXiv
1706.05125, section 2.2). All 12,234 lines of its data agree with `possible_counts` and `possible_pairs`. The reward
variants between selfish and cooperative are those of Liao, Tomlin, Klein (arXiv 2406.18872).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.tagged_session import TaggedSettings

ITEMS = ("book", "hat", "ball")
MOST_OF_A_TYPE = 4
"""Largest count of an item type. The paper gives no limit; its data has all counts up to this one and none above."""
MIN_ITEMS, MAX_ITEMS = 5, 7
"""Smallest and largest number of items of all types together."""
TOTAL_VALUE = 10
"""Value of all items together to each player."""

Triple = tuple[int, int, int]
"""A number for each item type, in the order of `ITEMS`."""
Split = tuple[Triple, Triple]
"""Number of items of each type that player 0 gets, then player 1; together they get all items."""
Pair = tuple[Triple, Triple]
"""Value of one item of each type to player 0, then to player 1."""
Part = Any
"""Weight of the partner's value relative to a player's own, or a quantity that depends on it: a number or an array."""


class BargainingConfig(TaggedSettings):
    """Reward and limits of the game."""

    name: Literal["bargaining"] = "bargaining"
    """Name of the game."""
    reward: Literal["cooperative", "semi", "selfish"] = "cooperative"
    """Value that is rewarded: the sum of both players' values (cooperative), the player's plus a part of the partner's
    (semi), or the player's alone (selfish).
    """
    semi_lambda: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the partner's value, relative to the player's own, if `reward` is semi."""
    max_length: Annotated[int, Field(ge=1)] = 20
    """Maximum number of turns in an episode, counting all players and illegal turns. Without agreement by then, both
    rewards are 0."""

    @property
    def partners_part(self) -> float:
        """Weight of the partner's value relative to the player's own."""
        return {"cooperative": 1.0, "semi": self.semi_lambda, "selfish": 0.0}[self.reward]


_Count = Annotated[int, Field(strict=True, ge=1, le=MOST_OF_A_TYPE)]
_Value = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
_Values = tuple[_Value, _Value, _Value]


class BargainingState(BaseModel):
    """One problem.

    Attributes:
        counts: Number of items of each type.
        values: Value of one item of each type to each player.
    """

    model_config = ConfigDict(frozen=True)

    counts: tuple[_Count, _Count, _Count]
    values: tuple[_Values, _Values]

    @model_validator(mode="after")
    def _is_legal(self) -> Self:
        totals = [dot(self.counts, values) for values in self.values]
        if totals[0] != totals[1]:
            raise ValueError(f"field 'values': all items are worth {totals[0]} to one player, {totals[1]} to the other")
        if not overlap(*self.values):
            raise ValueError("field 'values': each item must be worth something to a player, and some item to both")
        return self

    @property
    def total(self) -> int:
        """Value of all items together to each player."""
        return dot(self.counts, self.values[0])

    @cached_property
    def best(self) -> int:
        """Largest sum of both players' values; each item goes to the player to whom it is worth more."""
        return dot(self.counts, tuple(map(max, *self.values)))

    def worth(self, split: Split) -> tuple[int, int]:
        """Returns the value of each player's share to that player."""
        return dot(split[0], self.values[0]), dot(split[1], self.values[1])

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")


def dot(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Returns the total value of items, given the count and the value of each type."""
    return sum(count * value for count, value in zip(one, other, strict=True))


def overlap(one: Triple, other: Triple) -> bool:
    """Whether each item has a value for at least one player, and some item for both."""
    return all(map(max, one, other)) and any(map(min, one, other))


def rest(counts: Triple, share: Triple) -> Triple:
    """Returns the items that are left for the partner of a player who takes `share`."""
    book, hat, ball = (count - taken for count, taken in zip(counts, share, strict=True))
    return book, hat, ball


@lru_cache
def shares(counts: Triple) -> tuple[Triple, ...]:
    """Returns every share that one player can get."""
    books, hats, balls = (range(count + 1) for count in counts)
    return tuple(product(books, hats, balls))


@lru_cache
def all_values(counts: Triple, total: int) -> tuple[Triple, ...]:
    """Returns all assignments of values to the item types under which all items together are worth `total`."""
    books, hats, balls = (range(total // count + 1) for count in counts)
    return tuple(values for values in product(books, hats, balls) if dot(counts, values) == total)


@lru_cache
def possible_values(counts: Triple, own: Triple) -> tuple[Triple, ...]:
    """Returns all values that the partner of a player may have; all are equally likely."""
    return tuple(other for other in all_values(counts, dot(counts, own)) if overlap(own, other))


@lru_cache
def possible_pairs(counts: Triple, total: int) -> tuple[Pair, ...]:
    """Returns all pairs of both players' values; all are equally likely."""
    return tuple((one, other) for one in all_values(counts, total) for other in possible_values(counts, one))


@lru_cache
def possible_counts() -> tuple[Triple, ...]:
    """Returns all item counts that allow valid values for both players; all are equally likely."""
    numbers = range(1, MOST_OF_A_TYPE + 1)
    return tuple(
        counts
        for counts in product(numbers, numbers, numbers)
        if MIN_ITEMS <= sum(counts) <= MAX_ITEMS and possible_pairs(counts, TOTAL_VALUE)
    )


def sample_state(rng: np.random.Generator) -> BargainingState:
    """Returns a state with uniformly drawn counts and values. Lewis et al. do not give the distribution of states."""
    all_counts = possible_counts()
    counts = all_counts[rng.integers(len(all_counts))]
    pairs = possible_pairs(counts, TOTAL_VALUE)
    return BargainingState(counts=counts, values=pairs[rng.integers(len(pairs))])


def redraw(state: BargainingState, seat: int, rng: np.random.Generator) -> BargainingState:
    """Returns a state with the same counts and values of one player, and resampled values of its partner."""
    own = state.values[seat]
    possible = possible_values(state.counts, own)
    other = possible[rng.integers(len(possible))]
    return BargainingState(counts=state.counts, values=(own, other) if seat == 0 else (other, own))


def check_fits(state: BargainingState) -> None:
    """Raises UserError unless a state has a number of items and a total value that the game allows."""
    if not MIN_ITEMS <= sum(state.counts) <= MAX_ITEMS or state.total != TOTAL_VALUE:
        raise UserError(
            f"{sum(state.counts)} items that are worth {state.total}, but the game has {MIN_ITEMS} to {MAX_ITEMS} "
            f"items that are worth {TOTAL_VALUE}"
        )


def check_split(split: Any, counts: Triple) -> Split:
    """Returns a split from JSON data.

    Raises:
        ValueError: The split does not give each item to exactly one player.
    """
    try:
        one, other = (tuple(share) for share in split)
        legal = one in shares(counts) and other == rest(counts, one) and all(type(n) is int for n in one + other)
    except (TypeError, ValueError):
        legal = False
    if not legal:
        raise ValueError(f"{split} is not a split of {list(counts)} items")
    return one, other


def most(values: Pair, counts: Triple, part: Part) -> tuple[Part, Part]:
    """Returns, for each player, the largest value of own value + `part` × partner's value over all splits."""
    one, other = values
    return (
        sum(count * np.maximum(mine, part * theirs) for count, mine, theirs in zip(counts, one, other, strict=True)),
        sum(count * np.maximum(mine, part * theirs) for count, mine, theirs in zip(counts, other, one, strict=True)),
    )


def gains(state: BargainingState, split: Split, part: Part) -> tuple[Part, Part]:
    """Returns the reward of each player for a split: own value + part × the partner's, divided by its maximum over all
    splits.

    Args:
        part: Weight of the partner's value, λ; one number or many.
    """
    (one, other), (most_one, most_other) = state.worth(split), most(state.values, state.counts, part)
    # With a fraction λ, rounding could give a best split a reward above 1.
    return np.minimum(1.0, (one + part * other) / most_one), np.minimum(1.0, (other + part * one) / most_other)


def rewards(config: BargainingConfig, state: BargainingState, split: Split) -> tuple[float, float]:
    """Returns the reward of each player for a split."""
    one, other = gains(state, split, config.partners_part)
    return float(one), float(other)


def check_rewards(state: BargainingState, split: Split, found: Sequence[float]) -> None:
    """Raises ValueError unless some λ gives these rewards for the split, to within 0.001; records do not store λ."""
    one, other = gains(state, split, np.linspace(0, 1, 1001))
    if np.maximum(abs(one - found[0]), abs(other - found[1])).min() > 0.001:
        worth = state.worth(split)
        raise ValueError(f"{list(found)} are not what a split that is worth {worth[0]} and {worth[1]} brings")


def mean_gains(config: BargainingConfig, counts: Triple, values: Pair) -> NDArray[np.float64]:
    """Returns how much one item adds to the mean reward, shape (receiver, item type); rewards are linear in items."""
    part, (one, other) = config.partners_part, most(values, counts, config.partners_part)
    weights = np.array([[1 / one + part / other], [part / one + 1 / other]]) / 2
    return np.asarray(np.array(values) * weights, np.float64)
