"""Game of your own in one file: each of two players holds a number, and both must agree on the sum.

A turn is a whole number. The players agree when one of them repeats the number that the other has just said. See
docs/adding-a-game.md.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from selfplay_pipeline.games.base import AGREED, Game, GameSettings, Opening, ParseError
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.games.turn_session import Known, Move, TurnSession

RULES = (
    "Two players hold a number each and agree on the sum: say `[message]` and a number; repeat the other's to agree."
)
Number = Annotated[int, Field(strict=True)]


class Numbers(BaseModel):
    """One problem: the number of each player."""

    numbers: tuple[Number, Number]


class SumsSettings(GameSettings):
    """Range of the numbers, and the limits of every game."""

    largest: Annotated[int, Field(ge=1, le=1000)] = 9
    """Largest number that a player may hold."""


class SumsSession(TurnSession):
    """One episode; seat 0 speaks first."""

    def __init__(self, game: Sums, state: Numbers) -> None:
        super().__init__(game, state)
        self.said: list[int] = []

    def opening(self, seat: int) -> Opening:
        return Opening(RULES, f"Your number is {self.state.numbers[seat]}.")

    def act(self, seat: int, text: str) -> Move:
        found = re.fullmatch(r"\d{1,6}", untagged(text).strip(), re.ASCII)
        if found is None:
            raise ParseError("no_number", "That was no whole number.")
        self.said.append(int(found[0]))
        self.next = (1 - seat,)
        if self.said[-2:-1] == self.said[-1:]:
            self.end(AGREED, self.said[-1])
        return Move({1 - seat: f"[message] {self.said[-1]}"}, decision=self.decision)


class Adding:
    """Says its own number, or the sum if the partner spoke first; then repeats the partner's number."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        own, *heard = (int(found[0]) for text in view.read for found in [re.findall("[0-9]+", text)] if found)
        return f"[message] {own if not heard else heard[-1] if view.said else heard[0] + own}"


class Guessing:
    """Says a random number."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        return f"[message] {rng.integers(2, 19)}"


class Sums(Game):
    """Rules under one `SumsSettings`."""

    name = "sums"
    state = Numbers
    settings = SumsSettings
    error_kinds = ("no_number",)
    players = {"adding": Adding(), "guessing": Guessing()}

    def sample_state(self, rng: np.random.Generator) -> Numbers:
        return Numbers(numbers=tuple(rng.integers(1, self.config.largest, 2, endpoint=True).tolist()))

    def start(self, state: Numbers) -> SumsSession:
        return SumsSession(self, state)

    def rewards(self, state: Numbers, decision: Any) -> tuple[float, float]:
        right = float(decision == sum(state.numbers))
        return right, right
