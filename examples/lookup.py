"""A tool: the caller knows an order's number, the helper may look orders up, and names its price.

`[look] NUMBER` is a step of the helper's own turn: it is legal, keeps the turn, and its answer is told to the helper
alone. It counts as a turn, so that a helper who only looks things up reaches the turn limit.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from pydantic import BaseModel

from selfplay_pipeline.games.base import AGREED, MESSAGE, Game, Opening, ParseError
from selfplay_pipeline.games.turn_session import Known, Move, TurnSession

CALLER, HELPER = range(2)
RULES = "A caller asks what an order costs. The helper looks it up with `[look]` and says the price with `[message]`."


class Orders(BaseModel):
    """One problem: prices by order number, and the order that the caller asks for."""

    prices: dict[int, int]
    asked: int


class LookupSession(TurnSession):
    """One episode; the caller names a number, then the helper looks it up and answers."""

    def opening(self, seat: int) -> Opening:
        own = f"Ask for order {self.state.asked}." if seat == CALLER else "You are the helper."
        return Opening(RULES, own)

    def act(self, seat: int, text: str) -> Move:
        found = re.search(r"\[(message|look)\]\s*(\d{1,4})\b", text, re.ASCII)
        if found is None or (found[1] == "look" and seat == CALLER):
            raise ParseError("no_number", "Write [message] and a number; the helper may also write [look] and one.")
        action, number = found[1], int(found[2])
        if action == "look":
            return Move({seat: f"Order {number} costs {self.state.prices.get(number, 'nothing')}."}, action)
        if seat == HELPER:
            self.end(AGREED, number)
            return Move(decision=number)
        self.next = (HELPER,)
        return Move({HELPER: f"[message] {number}"})


class Careful:
    """Asks for its order; as the helper, looks up what it heard and says the price."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        number = (re.findall("[0-9]+", " ".join(view.read)) or ["0"])[-1]
        return f"[look] {number}" if view.seat == HELPER and not view.said else f"[message] {number}"


class Lookup(Game):
    """Rules of the game."""

    name = "lookup"
    state = Orders
    roles = ("caller", "helper")
    actions = frozenset({MESSAGE, "look"})
    error_kinds = ("no_number",)
    players = {"careful": Careful()}

    def sample_state(self, rng: np.random.Generator) -> Orders:
        numbers = rng.choice(np.arange(100, 1000), 5, replace=False).tolist()
        return Orders(prices={number: int(rng.integers(1, 100)) for number in numbers}, asked=numbers[0])

    def start(self, state: Orders) -> LookupSession:
        return LookupSession(self, state)

    def rewards(self, state: Orders, decision: Any) -> tuple[float, float]:
        right = float(decision == state.prices[state.asked])
        return right, right
