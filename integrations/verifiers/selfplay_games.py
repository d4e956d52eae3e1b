"""The games of selfplay-pipeline as an environment of verifiers: one agent a seat, or a player of ours in its place.

`selfplay evaluate` plays the same states. The game, its prompts, its rules and its figures are those of the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.types import UserMessage

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.games.measured import Measured
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.players import script_player
from selfplay_pipeline.generate.records import PolicyRecord
from selfplay_pipeline.generate.text_player import Message, text_player
from selfplay_pipeline.metrics.figures import REWARD, measure

__all__ = ["SeatHarness", "SelfplayEnv", "SelfplayTaskset"]
SEATS = 2
AGENT = "agent"
"""Name, in `players`, of a seat that an agent of verifiers holds."""


class SelfplayTasksetConfig(vf.TasksetConfig):
    config: str = "default"
    """A built-in configuration of selfplay-pipeline, or a YAML file."""
    settings: dict[str, Any] = {}
    """Further settings by dotted keys, such as `game`, the file of a game of one's own."""
    num_states: int = 100
    state_seed: int = 0


class StateData(vf.TaskData):
    state: dict[str, Any]
    """The state, in the game's own format."""


class StateTask(vf.Task[StateData, vf.State, vf.TaskConfig]):
    pass


class SelfplayTaskset(vf.Taskset[StateTask, SelfplayTasksetConfig]):
    """The held-out states that `selfplay evaluate` plays, in its order."""

    def load(self) -> Iterable[StateTask]:
        config = settings_of(self.config)
        game = make_game(config.game)
        for number, state in enumerate(sample_held_out(config, self.config.num_states).states):
            data = StateData(name=f"{game.name}#{number}", prompt=None, state=game.state_to_json(state))
            yield StateTask(data, self.config.task)


def settings_of(config: SelfplayTasksetConfig) -> Config:
    """Returns the configuration of the games."""
    return load_config(config.config, {**config.settings, "evaluate.state_seed": config.state_seed})


class SeatHarnessConfig(vf.HarnessConfig):
    pass


class SeatHarness(vf.Harness[SeatHarnessConfig]):
    """One request to the model a turn, without tools and without a process of its own."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):  # type: ignore[no-untyped-def]
        system, prompt = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += [message_to_wire(message) for message in prompt or []]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")


class SelfplayEnvConfig(vf.EnvConfig):
    seat0: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    seat1: vf.AgentConfig = vf.AgentConfig(runtime=vf.SubprocessConfig())
    players: list[str] = [AGENT, AGENT]
    """Who holds each seat: `agent`, or a scripted player of the game."""


@dataclass
class Interacting:
    """An agent of verifiers that speaks for a seat: each turn is one turn of its interaction."""

    agent: vf.Agent
    task: StateTask
    open: AsyncExitStack
    interaction: vf.Interaction | None = None

    async def ask(self, messages: list[Message]) -> Reply:
        if self.interaction is None:
            task = self.task.with_data(system_prompt=messages[0]["content"])
            self.interaction = await self.open.enter_async_context(self.agent.interaction(task))
        segment = await self.interaction.turn([UserMessage(content=messages[-1]["content"])])
        if segment.terminated:
            trace = self.interaction.trace
            reasons = [error.message for error in trace.errors] or [trace.stop_condition]
            raise EngineError(f"the run of an agent ended: {reasons[-1]}")
        text = next(str(one.content or "") for one in reversed(segment.messages) if one.role == "assistant")
        cut = self.interaction.trace.is_truncated
        return Reply(text, cut, "length" if cut else "stop")


class SelfplayEnv(vf.Env[SelfplayEnvConfig]):
    """One episode a state. Each agent's trace has its seat's reward, and every figure of `evaluate` as a metric."""

    async def setup(self, agents: vf.Agents) -> None:
        self.games = settings_of(self.taskset.config)

    async def run(self, task: StateTask, agents: vf.Agents) -> None:
        game = make_game(self.games.game)
        if not len(self.config.players) == len(game.roles) == SEATS:
            roles = len(game.roles)
            raise UserError(
                f"env.players: {game.name} has {roles} seats, {len(self.config.players)} are named; {SEATS} can play"
            )
        async with AsyncExitStack() as stack:
            asked = {
                seat: Interacting(getattr(agents, f"seat{seat}"), task, stack)
                for seat, name in enumerate(self.config.players)
                if name == AGENT
            }
            players = [
                text_player(ask=asked[seat].ask) if seat in asked else script_player(name)
                for seat, name in enumerate(self.config.players)
            ]
            number = int(task.data.idx or 0)
            episode = Episode(game, game.state_from_json(task.data.state), players, task.data.name, (0, number, 0))
            await episode.run()
            if episode.lost_to is not None:
                raise episode.lost_to
        record = episode.record(PolicyRecord.model_construct())
        for seat, player in asked.items():
            if player.interaction is not None:
                record_figures(player.interaction.trace, Measured(game, record, (seat,)))


def record_figures(trace: vf.Trace, episode: Measured) -> None:
    """Record the reward of a seat, and its other figures where they are defined."""
    for name, (total, count) in measure(episode).items():
        if name == REWARD.name:
            trace.record_reward(name, total / count)
        elif count:
            trace.record_metric(name, total / count)
