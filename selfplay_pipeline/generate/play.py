"""One play: two seats take turns until the game ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from selfplay_pipeline.engines.types import Engine, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.games.types import ActionKind, Opening, Session, Status
from selfplay_pipeline.generate.records import Trajectory, TurnRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream


@dataclass(frozen=True)
class Reply:
    """What a seat said. `cut` says that the token limit of a turn ended it."""

    text: str
    cut: bool
    finish_reason: str


class ContextFull(Exception):
    """The seat's next turn might not fit into the model's context."""


class Seat(Protocol):
    """Whoever holds one side of the table: a policy, a scripted partner, a remote model."""

    def observe(self, text: str) -> None: ...
    async def act(self) -> Reply: ...
    def finish(self) -> Trajectory | None: ...


@dataclass
class PolicySeat:
    """A seat held by the policy, with its own append-only token stream."""

    engine: Engine
    stream: Stream
    params: SamplingParams
    context_length: int
    session_key: str
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @classmethod
    def seated(
        cls,
        opening: Opening,
        player: int,
        *,
        engine: Engine,
        chat: ChatTokenizer,
        params: SamplingParams,
        context_length: int,
        session_key: str,
    ) -> PolicySeat:
        stream = Stream(chat, player, opening.system, [opening.observation])
        return cls(engine, stream, params, context_length, session_key)

    def observe(self, text: str) -> None:
        self.stream.observe(text)

    async def act(self) -> Reply:
        prompt = self.stream.prompt()
        if len(prompt) + self.params.max_new_tokens > self.context_length:
            raise ContextFull
        completion = await self.engine.generate(prompt, self.params, session=self.session_key)
        if completion.finish_reason is FinishReason.ABORT:
            raise EngineError("the engine aborted the request")
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        text = self.stream.reply(completion)
        return Reply(text, completion.finish_reason is FinishReason.LENGTH, completion.finish_reason.value)

    def finish(self) -> Trajectory:
        return self.stream.finish()


@dataclass
class Play:
    """A play in progress."""

    session: Session
    seats: list[Seat]
    turns: list[TurnRecord] = field(default_factory=list)

    async def run(self) -> None:
        """Play to the end; engine failures and full contexts end it with their own status."""
        while self.session.status is None:
            player = self.session.player
            try:
                reply = await self.seats[player].act()
            except ContextFull:
                self.session.abort(Status.CONTEXT_LENGTH)
                return
            except EngineError:
                self.session.abort(Status.ENGINE_FAILURE)
                return
            self.take_turn(player, reply)

    def take_turn(self, player: int, reply: Reply) -> None:
        """Give one reply to the rules and its observations to the seats."""
        step = self.session.step(reply.text, cut=reply.cut)
        for seat, observation in zip(self.seats, step.observations, strict=True):
            seat.observe(observation)
        self.turns.append(
            TurnRecord(
                player=player,
                text=reply.text,
                action=ActionKind(step.action.kind),
                proposal=list(step.action.proposal) if step.action.proposal else None,
                error=step.error,
                finish_reason=reply.finish_reason,
            )
        )
