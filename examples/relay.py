"""Three seats: two users say their letters at the same time, each to the clerk alone, who then writes the word.

Nobody but the clerk hears a user. Every seat has the same reward: the share of letters in the right place.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field

from selfplay_pipeline.games.base import AGREED, Game, Opening, ParseError
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.games.turn_session import Known, Move, TurnSession

FIRST, SECOND, CLERK = range(3)
RULES = "Two users tell a clerk a letter each, and the clerk writes both. Write `[message]` and the letters."
Letter = Annotated[str, Field(pattern="^[a-z]$")]


class Letters(BaseModel):
    """One problem: the letter of each user."""

    letters: tuple[Letter, Letter]


class RelaySession(TurnSession):
    """One episode; the users act at the same time, then the clerk."""

    def __init__(self, game: Relay, state: Letters) -> None:
        super().__init__(game, state)
        self.next = (FIRST, SECOND)
        self.heard: dict[int, str] = {}

    def opening(self, seat: int) -> Opening:
        return Opening(RULES, "You are the clerk." if seat == CLERK else f"Your letter is {self.state.letters[seat]}.")

    def act(self, seat: int, text: str) -> Move:
        found = re.findall(r"\b[a-z]\b", untagged(text), re.ASCII)
        if len(found) != (2 if seat == CLERK else 1):
            raise ParseError("no_letters", "Write single letters, with spaces between them.")
        if seat == CLERK:
            self.end(AGREED, found)
            return Move(decision=found)
        self.heard[seat] = found[0]
        self.next = tuple(user for user in (FIRST, SECOND) if user not in self.heard) or (CLERK,)
        return Move({CLERK: f"User {seat} says: {found[0]}\n"})


class Exact:
    """Says its own letter; as the clerk, what it heard."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        told = sorted(view.read[1:]) if view.seat == CLERK else view.read
        return f"[message] {' '.join(re.findall(r'(?:is|says:) ([a-z])', ' '.join(told)))}"


class Relay(Game):
    """Rules of the game."""

    name = "relay"
    state = Letters
    roles = ("user", "user", "clerk")
    error_kinds = ("no_letters",)
    players = {"exact": Exact()}

    def sample_state(self, rng: np.random.Generator) -> Letters:
        return Letters(letters=tuple(chr(97 + number) for number in rng.integers(0, 26, 2)))

    def start(self, state: Letters) -> RelaySession:
        return RelaySession(self, state)

    def rewards(self, state: Letters, decision: Any) -> tuple[float, ...]:
        right = sum(one == other for one, other in zip(state.letters, decision, strict=True)) / 2
        return (right,) * 3
