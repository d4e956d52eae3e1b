"""Two seats with different rewards: a seller and a buyer agree on a price, and each knows only its own limit.

A turn is `[message] TEXT`, `[price] NUMBER` (an offer, which replaces the last one) or `[deal]`, which accepts the
other's offer. What is gained by the trade goes to the seller above its cost, to the buyer below its value.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from pydantic import BaseModel

from selfplay_pipeline.games.base import AGREED, MESSAGE, Game, Opening, ParseError
from selfplay_pipeline.games.turn_session import Known, Move, TurnSession

RULES = (
    "A seller and a buyer agree on a price from 0 to 20. Write `[message]` and words, `[price]` and a number, or "
    "`[deal]` to accept the other's price. You score what you gain: the seller the price minus its cost, the buyer its "
    "value minus the price."
)


class Trade(BaseModel):
    """One problem: the seller's cost, and the buyer's value, which is higher."""

    cost: int
    value: int


class HaggleSession(TurnSession):
    """One episode; the seller speaks first. `offers` holds the last price that each seat named."""

    def __init__(self, game: Haggle, state: Trade) -> None:
        super().__init__(game, state)
        self.offers: list[int | None] = [None, None]

    def opening(self, seat: int) -> Opening:
        buys, sells = f"You buy; it is worth {self.state.value} to you.", f"You sell; it costs you {self.state.cost}."
        return Opening(RULES, buys if seat else sells)

    def act(self, seat: int, text: str) -> Move:
        found = re.search(r"\[(message|price|deal)\]\s*(.*)", text, re.DOTALL)
        if found is None:
            raise ParseError("no_tag", "Begin with [message], [price] or [deal].")
        action, words, other = found[1], found[2].strip(), 1 - seat
        decision = None
        if action == "price":
            if not re.fullmatch(r"1?\d|20", words, re.ASCII):
                raise ParseError("no_price", "A price is a whole number from 0 to 20.")
            decision = self.offers[seat] = int(words)
        elif action == "deal":
            if self.offers[other] is None:
                raise ParseError("no_offer", "There is no price to accept.")
            self.end(AGREED, self.offers[other])
        self.next = (other,)
        return Move({other: f"[{action}] {words}".strip()}, action, decision)


class Halving:
    """Offers a price halfway between its own limit and the far end, and accepts whatever the other offers."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        if any("[price]" in text for text in view.read):
            return "[deal]"
        own = int(re.findall("[0-9]+", view.read[0])[0])
        return f"[price] {own // 2 if view.seat else (own + 20) // 2}"


class Talking:
    """Says anything, offers a random price, and sometimes accepts."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        said = rng.integers(3)
        return f"[{MESSAGE}] hello" if said == 0 else f"[price] {rng.integers(21)}" if said == 1 else "[deal]"


class Haggle(Game):
    """Rules; both seats' rewards are shares of what the best trade brings."""

    name = "haggle"
    state = Trade
    roles = ("seller", "buyer")
    shared_reward = False
    actions = frozenset({MESSAGE, "price", "deal"})
    error_kinds = ("no_tag", "no_price", "no_offer")
    players = {"halving": Halving(), "talking": Talking()}

    def sample_state(self, rng: np.random.Generator) -> Trade:
        cost = int(rng.integers(0, 15))
        return Trade(cost=cost, value=int(rng.integers(cost + 3, 21)))

    def start(self, state: Trade) -> HaggleSession:
        return HaggleSession(self, state)

    def rewards(self, state: Trade, decision: Any) -> tuple[float, float]:
        gains = decision - state.cost, state.value - decision
        return tuple(min(1.0, max(0.0, gain / (state.value - state.cost))) for gain in gains)
