"""One episode: its seats take turns until the game ends.

Seats that may act at the same time act one after the other. The result is the same as in parallel, since no seat
observes another's turn before all have acted. Many concurrent episodes keep the engine busy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Session, Status
from selfplay_pipeline.generate.records import Trajectory, TurnRecord

LONGEST_TURN = 2**15
"""Largest number of characters of a turn. A longer one counts as cut by its limit of tokens.

A server of others may ignore the limit of tokens, and templates and lines of a file have limits of their own.
"""


@dataclass(frozen=True)
class Reply:
    """Reply of a seat; `cut` is True if the token limit of a turn ended it."""

    text: str
    cut: bool
    finish_reason: str


class ContextFull(Exception):
    """The seat's next turn might not fit into the model's context."""


class PersonLeft(Exception):
    """The person in the seat leaves the episode."""


class SeatedPlayer(Protocol):
    """A player in one seat of one episode: a policy, a scripted player, or a chat model behind an API."""

    prompt_tokens: int
    """Tokens of all prompts that this seat sent to an engine."""
    cached_tokens: int
    """Number of the prompt tokens that were in the engine's prefix cache."""

    def observe(self, text: str) -> None:
        """Add an observation to the context of the next turn."""
        ...

    def say(self, text: str) -> None:
        """Add a turn that the caller supplies to the context of the next turn."""
        ...

    async def act(self) -> Reply:
        """Take a turn and return its text.

        Raises:
            ContextFull: The turn might not fit into the model's context.
            EngineError: No answer came after all retries.
            PersonLeft: The person in the seat leaves the episode.
        """
        ...

    def finish(self) -> Trajectory | None:
        """Returns the trajectory of a trained seat; None for any other seat."""
        ...


@dataclass
class Episode:
    """An episode in progress."""

    session: Session
    seats: list[SeatedPlayer]
    turns: list[TurnRecord] = field(default_factory=list)
    lost_to: EngineError | None = None
    """Error of the engine if the episode ended with `ENGINE_FAILURE`; else None."""

    async def run(self, until: int | None = None) -> None:
        """Play to the end; an engine failure or a full context ends the episode with its own status.

        Args:
            until: Seat whose replies the caller supplies; play stops before its turn.
        """
        while (seats := self.session.seats) and seats[0] != until:
            seat = seats[0]
            try:
                reply = await self.seats[seat].act()
            except ContextFull:
                self.session.abort(Status.CONTEXT_LENGTH)
                return
            except PersonLeft:
                self.session.abort(Status.ABANDONED)
                return
            except EngineError as error:
                self.session.abort(Status.ENGINE_FAILURE)
                self.lost_to = error
                return
            self.take_turn(seat, reply)

    def play_out(self) -> None:
        """Play to the end without an event loop, for seats that never wait, such as scripted players.

        Raises:
            RuntimeError: A seat waits for an answer.
        """
        try:
            self.run().send(None)
        except StopIteration:
            return
        raise RuntimeError("a seat waits for an answer; await `run` instead")

    def take_turn(self, seat: int, reply: Reply) -> None:
        """Apply one reply, of which at most `LONGEST_TURN` characters count, and pass the observations to the seats."""
        self.apply_turn(seat, bounded(reply))

    def apply_turn(self, seat: int, reply: Reply) -> None:
        """Apply one reply to the game and pass the observations to the seats."""
        step = self.session.step(seat, reply.text, cut=reply.cut)
        for holder, observation in zip(self.seats, step.observations, strict=True):
            holder.observe(observation)
        self.turns.append(TurnRecord.of(seat, reply.text, step, reply.finish_reason))


def bounded(reply: Reply) -> Reply:
    """Returns a reply of at most `LONGEST_TURN` characters that can be stored as UTF-8."""
    text = storable(reply.text)
    cut = reply.cut or len(reply.text) > LONGEST_TURN
    return Reply(text, cut, "length" if cut and not reply.cut else reply.finish_reason)


def storable(text: str) -> str:
    """Returns the first `LONGEST_TURN` characters of a text, without surrogates, which UTF-8 cannot store."""
    return text[:LONGEST_TURN].encode("utf-8", "replace").decode()
