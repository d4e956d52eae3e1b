"""How well the tiny model plays, in this process and without a server: all episodes turn by turn in one batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from selfplay_pipeline.engines.types import FinishReason
from selfplay_pipeline.games.base import Game, Lesson, Outcome
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream
from selfplay_pipeline.models.imitation import completion, open_streams

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
    outcomes, streams = play_batch(model, chat, game, states, temperature, lesson)
    rewards = np.array([np.mean([outcome.rewards[seat] for seat in lesson.seats]) for outcome in outcomes])
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


def play_batch(
    model: Any,
    chat: ChatTokenizer,
    game: Game,
    states: Sequence[Any],
    temperature: float,
    lesson: Lesson,
) -> tuple[list[Outcome], list[Stream]]:
    """One episode per state, all turn by turn together; the lesson's partner holds the seats that it does not teach."""
    sessions = [game.start(state) for state in states]
    streams = [open_streams(game, chat, state) for state in states]
    rng = np.random.default_rng(0)

    def take_turn(index: int, text: str, cut: bool = False) -> None:
        step = sessions[index].step(text, cut=cut)
        for hearer, observation in zip(streams[index], step.observations, strict=True):
            hearer.observe(observation)

    while live := [index for index, session in enumerate(sessions) if session.status is None]:
        if lesson.partner and (theirs := [index for index in live if sessions[index].seat not in lesson.seats]):
            for index in theirs:
                session = sessions[index]
                take_turn(index, lesson.partner.act(game.view(session, session.seat), rng))
            continue
        acting = [streams[index][sessions[index].seat] for index in live]
        replies = _sample(model, [stream.prompt() for stream in acting], temperature)
        for index, stream, reply in zip(live, acting, replies, strict=True):
            cut = reply[-1] != chat.end_of_turn
            text = stream.reply(completion(reply, FinishReason.LENGTH if cut else FinishReason.STOP))
            take_turn(index, text, cut)
    return [session.outcome() for session in sessions], [stream for pair in streams for stream in pair]


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
