"""Players that can hold a seat. One player object is used for a whole run and takes a new seat in each episode."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from selfplay_pipeline.engines.types import Engine, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.games.base import SEATS, Game, Opening, ScriptedPlayer
from selfplay_pipeline.generate.episode import ContextFull, Reply, SeatedPlayer
from selfplay_pipeline.generate.records import POLICY, ChatMessage, Kind, PolicyRecord, SeatRecord, Trajectory
from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder


@dataclass(frozen=True)
class Seat:
    """One seat of one episode, as its player sees it."""

    opening: Opening
    """The rules and the player's private view, as text."""
    view: Callable[[], Any]
    """Returns the player's current knowledge as data, for scripted players."""
    script: Callable[[str], ScriptedPlayer]
    """Returns the game's scripted player with a given name."""
    number: int
    key: str
    """Identifier of the seat, unique among all episodes."""
    seed: tuple[int, ...]
    """Seed of the seat's random stream."""

    @classmethod
    def at(cls, game: Game, session: Any, number: int, episode_id: str, seed: tuple[int, ...]) -> Seat:
        """Returns a seat of an episode, without the private information of other seats."""
        return cls(
            opening=session.opening(number),
            view=partial(game.view, session, number),
            script=game.players.__getitem__,
            number=number,
            key=f"{episode_id}-{number}",
            seed=(SEATS, *seed, number),
        )


class Player(Protocol):
    """A checkpoint, a scripted player, or a chat model behind an API."""

    @property
    def record(self) -> SeatRecord:
        """Record of each seat that the player holds."""
        ...

    def sit(self, seat: Seat) -> SeatedPlayer: ...


@dataclass(frozen=True)
class PolicyPlayer:
    """A checkpoint served by an engine; its seats record trajectories if it is trained."""

    engine: Engine
    chat: ChatTokenizer
    policy: PolicyRecord
    context_length: int
    kind: Kind = "policy"
    name: str = POLICY
    trained: bool = True

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind=self.kind, name=self.name, trained=self.trained, policy=self.policy)

    def sit(self, seat: Seat) -> SeatedPolicy:
        params = SamplingParams(
            temperature=self.policy.temperature,
            max_new_tokens=self.policy.max_new_tokens,
            stop_token_ids=self.chat.stops,
        )
        return SeatedPolicy(
            engine=self.engine,
            stream=TrajectoryBuilder(self.chat, seat.number, seat.opening.system, [seat.opening.observation]),
            params=params,
            context_length=self.context_length,
            session_key=seat.key,
            recorded=self.trained,
        )


@dataclass
class SeatedPolicy:
    """A seat held by a checkpoint, with its own append-only token stream."""

    engine: Engine
    stream: TrajectoryBuilder
    params: SamplingParams
    context_length: int
    session_key: str
    recorded: bool = True
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def observe(self, text: str) -> None:
        self.stream.observe(text)

    def say(self, text: str) -> None:
        self.stream.say(text, learned=False)

    async def act(self) -> Reply:
        prompt = self.stream.prompt()
        if len(prompt) + self.params.max_new_tokens > self.context_length:
            raise ContextFull
        completion = await self.engine.generate(prompt, self.params, session=self.session_key)
        if completion.finish_reason is FinishReason.ABORT:
            raise EngineError("the engine aborted the request")
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens
        text, whole = self.stream.chat.said(self.stream.reply(completion))
        cut = completion.finish_reason is FinishReason.LENGTH or not whole
        return Reply(text, cut, completion.finish_reason.value)

    def context(self) -> list[ChatMessage]:
        return self.stream.context()

    def finish(self) -> Trajectory | None:
        return self.stream.finish() if self.recorded else None


@dataclass(frozen=True)
class Scripted:
    """A scripted player of the game, identified by its name."""

    name: str

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="script", name=self.name)

    def sit(self, seat: Seat) -> SeatedScript:
        return SeatedScript(seat.script(self.name), seat.view, np.random.default_rng(seat.seed))


@dataclass
class SeatedScript:
    """A seat held by a scripted player, which reads the state as data and ignores observations."""

    script: ScriptedPlayer
    view: Callable[[], Any]
    rng: np.random.Generator
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def observe(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    async def act(self) -> Reply:
        return Reply(self.script.act(self.view(), self.rng), False, "scripted")

    def finish(self) -> None:
        return None
