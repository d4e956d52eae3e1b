"""The policy and scripted players, as players that hold a seat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfplay_pipeline.engines.types import Engine, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.games.base import ScriptedPlayer
from selfplay_pipeline.generate.episode import ContextFull, Player, Reply, SeatView
from selfplay_pipeline.generate.records import POLICY, ChatMessage, Kind, PolicyRecord, SeatRecord, Trajectory
from selfplay_pipeline.generate.trajectory import BUILDERS, ChatTokenizer, TrajectoryBuilder


def policy_player(
    engine: Engine,
    chat: ChatTokenizer,
    policy: PolicyRecord,
    context_length: int,
    kind: Kind = "policy",
    name: str = POLICY,
    trained: bool = True,
) -> Player:
    """Returns a checkpoint that an engine serves, as a player; its seats record trajectories if it is trained."""
    params = SamplingParams(
        temperature=policy.temperature, max_new_tokens=policy.max_new_tokens, stop_token_ids=chat.stops
    )

    def sit(seat: SeatView) -> PolicySeat:
        stream = BUILDERS[policy.history](chat, seat.number, seat.opening.system, [seat.opening.observation])
        return PolicySeat(engine, stream, params, context_length, seat.key, recorded=trained)

    return Player(SeatRecord(kind=kind, name=name, trained=trained, policy=policy), sit)


@dataclass
class PolicySeat:
    """A seat held by a checkpoint, with its own token stream."""

    engine: Engine
    stream: TrajectoryBuilder
    params: SamplingParams
    context_length: int
    session_key: str
    recorded: bool = True
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage: None = None

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

    def finish(self) -> list[Trajectory]:
        return self.stream.trajectories() if self.recorded else []


def script_player(name: str) -> Player:
    """Returns the scripted player of the game with a name."""

    def sit(seat: SeatView) -> ScriptSeat:
        return ScriptSeat(seat.script(name), seat.view, np.random.default_rng(seat.seed))

    return Player(SeatRecord(kind="script", name=name), sit)


@dataclass
class ScriptSeat:
    """A seat held by a scripted player, which reads `Game.view` and ignores observations."""

    script: ScriptedPlayer
    view: Callable[[], Any]
    rng: np.random.Generator
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage: None = None

    def observe(self, text: str) -> None:
        pass

    def say(self, text: str) -> None:
        pass

    async def act(self) -> Reply:
        return Reply(self.script.act(self.view(), self.rng), False, "scripted")

    def finish(self) -> list[Trajectory]:
        return []
