"""One episode: its seats take turns until the game ends.

Where several seats may act at once, they act one after the other. They sit in separate rooms and do not hear each other
before all have acted, so that the tokens of each are the same; and an engine is kept busy by many episodes at once, in
each of which one seat waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Session, Status
from selfplay_pipeline.generate.records import Trajectory, TurnRecord


@dataclass(frozen=True)
class Reply:
    """What a seat said. `cut` says that the token limit of a turn ended it."""

    text: str
    cut: bool
    finish_reason: str


class ContextFull(Exception):
    """The seat's next turn might not fit into the model's context."""


class SeatedPlayer(Protocol):
    """A player in one seat of one episode: a policy, a scripted player, or a chat model behind an API."""

    prompt_tokens: int
    """Tokens of all prompts that this seat sent to an engine."""
    cached_tokens: int
    """How many of the prompt tokens the engine had in its cache."""

    def observe(self, text: str) -> None:
        """Take in an observation, before the next turn."""
        ...

    async def act(self) -> Reply:
        """Take a turn.

        Raises:
            ContextFull: the turn might not fit.
            EngineError: no answer, after all retries.
        """
        ...

    def finish(self) -> Trajectory | None:
        """What this seat can be trained on, None if nothing."""
        ...


@dataclass
class Episode:
    """An episode in progress."""

    session: Session
    seats: list[SeatedPlayer]
    turns: list[TurnRecord] = field(default_factory=list)
    lost_to: EngineError | None = None
    """Why the engine gave no answer, after an episode that ended with `ENGINE_FAILURE`."""

    async def run(self, until: int | None = None) -> None:
        """Play to the end; engine failures and full contexts end it with their own status.

        Args:
            until: stop earlier, when it is this seat's turn, whose words come from elsewhere.
        """
        while (seats := self.session.seats) and seats[0] != until:
            seat = seats[0]
            try:
                reply = await self.seats[seat].act()
            except ContextFull:
                self.session.abort(Status.CONTEXT_LENGTH)
                return
            except EngineError as error:
                self.session.abort(Status.ENGINE_FAILURE)
                self.lost_to = error
                return
            self.take_turn(seat, reply)

    def play_out(self) -> None:
        """`run` for seats that wait for nothing, such as scripts: it needs no event loop.

        Raises:
            RuntimeError: a seat waits for something.
        """
        try:
            self.run().send(None)
        except StopIteration:
            return
        raise RuntimeError("a seat waits for an answer; await `run` instead")

    def take_turn(self, seat: int, reply: Reply) -> None:
        """Give one reply to the rules and its observations to the seats."""
        step = self.session.step(seat, reply.text, cut=reply.cut)
        for holder, observation in zip(self.seats, step.observations, strict=True):
            holder.observe(observation)
        self.turns.append(TurnRecord.of(seat, reply.text, step, reply.finish_reason))
