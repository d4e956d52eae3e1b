"""Game of your own in one file: each of two players holds a number, and both must agree on the sum.

A turn is a whole number. The players agree when one of them repeats the number that the other has just said. See
docs/adding-a-game.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import (
    AGREED,
    CUT,
    INVALID,
    MESSAGE,
    Game,
    GameSettings,
    Opening,
    Outcome,
    Status,
    Step,
    check_may_act,
)  # fmt: skip
from selfplay_pipeline.games.tags import untagged

RULES = (
    "Two players hold a number each and agree on the sum: say `[message]` and a number; repeat the other's to agree."
)
Numbers = tuple[int, int]


class SumsSettings(GameSettings):
    """Range of the numbers, and the limits of every game."""

    largest: Annotated[int, Field(ge=1, le=1000)] = 9
    """Largest number that a player may hold."""


@dataclass
class SumsSession:
    """One episode; seat 0 speaks first."""

    numbers: Numbers
    config: SumsSettings
    status: str | None = None
    said: list[int] = field(default_factory=list)
    illegal: int = 0

    @property
    def seats(self) -> tuple[int, ...]:
        return (len(self.said) % 2,) if self.status is None else ()

    def opening(self, seat: int) -> Opening:
        return Opening(RULES, f"Your number is {self.numbers[seat]}.")

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        check_may_act(self, seat)
        found = None if cut else re.fullmatch(r"\d{1,6}", untagged(text).strip(), re.ASCII)
        heard, self.illegal = ["", ""], self.illegal + (found is None)
        if found:
            self.said.append(int(found[0]))
            heard[1 - seat] = "[message]" if self.config.mute else f"[message] {self.said[-1]}"
            if self.said[-2:-1] == self.said[-1:]:
                self.status = AGREED
        else:
            heard[seat] = "That was no whole number. Say one."
        if self.status is None and len(self.said) + self.illegal >= self.config.max_length:
            self.status = Status.TURN_LIMIT
        if found is None:
            return Step(INVALID, tuple(heard), error="no whole number", error_kind=CUT if cut else "no_number")
        return Step(MESSAGE, tuple(heard), decision=self.said[-1] if self.status == AGREED else None)

    def abort(self, status: Status) -> None:
        self.status = self.status or status

    def outcome(self) -> Outcome:
        assert self.status is not None
        decision = self.said[-1] if self.status == AGREED else None
        score, turns = float(decision == sum(self.numbers)), len(self.said)
        return Outcome(self.status, (score, score), score, 1.0, decision, turns + self.illegal, turns, 0, self.illegal)


class Adding:
    """Says its own number, or the sum if the partner spoke first; then repeats the partner's number."""

    def act(self, view: tuple[int, list[int]], rng: np.random.Generator) -> str:
        own, said = view
        return f"[message] {own if not said else said[0] + own if len(said) == 1 else said[-1]}"


class Guessing:
    """Says a random number."""

    def act(self, view: tuple[int, list[int]], rng: np.random.Generator) -> str:
        return f"[message] {rng.integers(2, 19)}"


class Sums(Game):
    """Rules under one `SumsSettings`."""

    name = "sums"
    settings = SumsSettings
    error_kinds = ("no_number",)
    players = {"adding": Adding(), "guessing": Guessing()}

    def sample_state(self, rng: np.random.Generator) -> Numbers:
        first, second = map(int, rng.integers(1, self.config.largest, 2, endpoint=True))
        return first, second

    def start(self, state: Numbers) -> SumsSession:
        return SumsSession(state, self.config)

    def state_to_json(self, state: Numbers) -> dict[str, Any]:
        return {"numbers": list(state)}

    def state_from_json(self, data: Any) -> Numbers:
        numbers = data.get("numbers")
        if not isinstance(numbers, list) or [type(number) for number in numbers] != [int, int]:
            raise UserError("field 'numbers': expected two whole numbers")
        return numbers[0], numbers[1]

    def view(self, session: SumsSession, seat: int) -> tuple[int, list[int]]:
        return session.numbers[seat], session.said

    def check_outcome(self, state: Numbers, outcome: Any) -> None:
        if outcome.score != float(outcome.proposal == sum(state)):
            raise ValueError(f"field 'outcome.score': {outcome.score:g}, but the sum is {sum(state)}")
