"""A game in which any text is a legal turn, and each seat is rewarded for what it says itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel

from selfplay_pipeline.games.base import AGREED, Game, Opening
from selfplay_pipeline.games.turn_session import Move, TurnSession


class Topic(BaseModel):
    """One problem."""

    topic: int


class TalkSession(TurnSession):
    """One episode: seat 0 says something, then seat 1."""

    def __init__(self, game: Talk, state: Topic) -> None:
        super().__init__(game, state)
        self.said: list[str] = []

    def opening(self, seat: int) -> Opening:
        return Opening("Say anything.", f"The topic is {self.state.topic}.")

    def act(self, seat: int, text: str) -> Move:
        self.said.append(text)
        self.next = (1,)
        if seat == 1:
            self.end(AGREED, self.said)
        return Move({1 - seat: text}, decision=text)


class Talk(Game):
    """Rules: a seat's reward is the last digit of the length of what it said."""

    name = "talk"
    state = Topic
    shared_reward = False

    def sample_state(self, rng: np.random.Generator) -> Topic:
        return Topic(topic=int(rng.integers(1000)))

    def start(self, state: Topic) -> TalkSession:
        return TalkSession(self, state)

    def rewards(self, state: Topic, decision: Any) -> tuple[float, ...]:
        return tuple(len(text) % 10 / 9 for text in decision)
