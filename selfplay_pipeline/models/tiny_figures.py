"""How well the tiny model plays, in this process and without a server: all episodes turn by turn in one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.engines.types import Completion, SamplingParams, finish_reason
from selfplay_pipeline.games.base import Game, Lesson
from selfplay_pipeline.generate.players import PolicyPlayer, Scripted
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord
from selfplay_pipeline.generate.run import Sitting
from selfplay_pipeline.generate.trajectory import ChatTokenizer

MAX_NEW_TOKENS = 64
"""Tokens of one turn; the longest that a lesson teaches has 29."""


@dataclass(frozen=True)
class Figures:
    """What a model reaches on held-out states; rewards are means over its seats, `agreed_reward` of agreed episodes."""

    temperature: float
    episodes: int
    reward: float
    standard_error: float
    agreed: float
    agreed_reward: float
    optimal: float
    legal: float
    tokens_per_turn: float
    tokens_per_episode: float


def measure(
    model: Any,
    chat: ChatTokenizer,
    game: Game,
    states: Sequence[Any],
    temperature: float,
    seed: int,
    lesson: Lesson,
) -> Figures:
    """Let the model play the lesson's seats of every state once."""
    import torch

    torch.manual_seed(seed)
    episodes = asyncio.run(play_together(model, chat, game, states, temperature, lesson))
    outcomes = [episode.outcome for episode in episodes]
    streams = [stream for episode in episodes for stream in episode.trajectories]
    rewards = np.array([np.mean([outcome.reward_of(seat) for seat in lesson.seats]) for outcome in outcomes])
    agreed = np.array([outcome.status in game.goals for outcome in outcomes])
    turns = sum(outcome.num_turns for outcome in outcomes)
    sampled = sum(sum(stream.response_mask) for stream in streams)
    return Figures(
        temperature=temperature,
        episodes=len(outcomes),
        reward=round(float(rewards.mean()), 4),
        standard_error=round(float(rewards.std() / len(rewards) ** 0.5), 4),
        agreed=round(float(agreed.mean()), 4),
        agreed_reward=round(float(rewards[agreed].mean()) if agreed.any() else 0.0, 4),
        optimal=round(float((rewards == 1).mean()), 4),
        legal=round(1 - sum(outcome.num_illegal for outcome in outcomes) / turns, 4),
        tokens_per_turn=round(sampled / turns, 1),
        tokens_per_episode=round(sum(len(s.prompt_ids) + len(s.response_ids) for s in streams) / len(outcomes), 1),
    )


async def play_together(
    model: Any,
    chat: ChatTokenizer,
    game: Game,
    states: Sequence[Any],
    temperature: float,
    lesson: Lesson,
) -> list[EpisodeRecord]:
    """One episode per state, in step with each other; the lesson's partner holds the seats that it does not teach."""
    policy = PolicyRecord(
        checkpoint="", iteration=0, engine="together", temperature=temperature, max_new_tokens=MAX_NEW_TOKENS
    )
    own = PolicyPlayer(Together(model), chat, policy, model.config.max_position_embeddings)
    players = [
        Scripted(lesson.partner) if lesson.partner and seat not in lesson.seats else own
        for seat, _ in enumerate(game.roles)
    ]
    sittings = [Sitting(game, state, players, str(number), (0, number, 0)) for number, state in enumerate(states)]
    await asyncio.gather(*(sitting.episode.run() for sitting in sittings))
    return [sitting.record(policy) for sitting in sittings]


@dataclass
class Batch:
    """Prompts that wait, and their replies once these are sampled."""

    prompts: list[Sequence[int]] = field(default_factory=list)
    replies: list[list[int]] = field(default_factory=list)


class Together:
    """An engine that samples for all who wait in one batch: a turn of all episodes is one call of the model.

    It counts on seats that wait for nothing else.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.batch = Batch()

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        batch, number = self.batch, len(self.batch.prompts)
        batch.prompts.append(prompt_ids)
        await asyncio.sleep(0)  # meanwhile every other episode comes to its next prompt
        if number == 0:
            self.batch = Batch()
            batch.replies = _sample(self.model, batch.prompts, params.temperature)
        reply = batch.replies[number]
        reason = finish_reason(None, reply, params)
        return Completion(reply, [0.0] * len(reply), reason, prompt_tokens=len(prompt_ids), cached_tokens=0)

    async def reload(self, checkpoint: Path) -> None:
        raise NotImplementedError("it plays with the model that it was given")

    async def release(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        return None


def _sample(model: Any, prompts: Sequence[Sequence[int]], temperature: float) -> list[list[int]]:
    import torch

    pad, end = model.config.pad_token_id, model.config.eos_token_id
    width = max(map(len, prompts))
    ids = torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
    greedy = {"do_sample": False}
    with torch.no_grad():
        output = model.generate(
            ids,
            attention_mask=(ids != pad).long(),
            max_new_tokens=MAX_NEW_TOKENS,
            pad_token_id=pad,
            **(sampling if temperature else greedy),
        )
    replies = output[:, width:].tolist()
    return [reply[: reply.index(end) + 1] if end in reply else reply for reply in replies]
