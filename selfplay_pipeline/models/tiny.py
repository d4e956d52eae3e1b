"""The tiny model: a Qwen2 of about 0.8 million parameters that plays 3×3 boards, for machines without a model hub.

Its warm start imitates scripted players that talk well enough but plan poorly: it learns the rules, the dialect
and *how* to plan from what both players know, but mostly does not do so. That leaves self-play something to learn.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.games.matching import (
    MatchingConfig,
    MatchingGame,
    MatchingSession,
    MatchingState,
)
from selfplay_pipeline.games.scripted import (
    PlayerView,
    ScriptedPlayer,
    estimate,
    heard_cells,
    own_cells,
    propose,
    tell,
)
from selfplay_pipeline.games.types import HELD_OUT, Outcome, Status, state_rng
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream
from selfplay_pipeline.models.tiny_tokenizer import save_tokenizer

TINY_GAME = MatchingConfig(
    size=3, max_score=9, scale_min=1, scale_max=1, max_length=12, max_errors=3, prompts="compact"
)
"""The board that the tiny model plays."""

MAX_NEW_TOKENS = 48
"""Tokens of one turn: a message with all nine cells has 29."""

CONTEXT_LENGTH = 1024

WARM_START = 2
"""Seed space of the imitated games' states, apart from those of training and of evaluation."""


@dataclass(frozen=True)
class Teacher:
    """The imitated player: it says what it sees, or a part of it, and prefers good plans without insisting.

    It draws matchings in proportion to exp(estimated value / temperature). That is learned much sooner than the
    best matching alone, since the log-odds are linear in the scores.
    """

    own_view: float = 0.65
    """How often it plans from its own view, deaf to what it was told."""
    temperature: float = 1.5
    """Points of score that make a matching e times as likely."""
    partial: float = 0.4
    """How often it tells only about half of its cells."""
    answer: float = 0.3
    """How often player 1 tells its own cells before a proposal is made."""
    reject: float = 0.03
    """How often it rejects a first proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            rejects = rng.random() < self.reject and not any("[reject]" in text for _, text in view.history)
            return "[reject]" if rejects else "[accept]"
        spoke = bool(view.said(view.player))
        if not spoke and (not view.history or rng.random() < self.answer):
            keep = 0.5 if rng.random() < self.partial else 1.0
            return tell(view, {cell: score for cell, score in own_cells(view).items() if rng.random() < keep})
        table = estimate(view, {} if rng.random() < self.own_view else heard_cells(view))
        plans = [tuple(enumerate(papers)) for papers in permutations(range(len(table)))]
        values = np.array([sum(table[pair] for pair in plan) for plan in plans])
        odds = np.exp((values - values.max()) / self.temperature)
        return propose(view, plans[rng.choice(len(plans), p=odds / odds.sum())])


@dataclass(frozen=True)
class Figures:
    """What a model reaches on held-out states; `agreed_reward` is the mean reward of the agreed plays."""

    temperature: float
    plays: int
    reward: float
    standard_error: float
    agreed: float
    agreed_reward: float
    optimal: float
    legal: float
    tokens_per_turn: float
    tokens_per_play: float


def build_tiny_model(
    out: Path, *, seed: int = 0, steps: int = 1200, games_per_step: int = 64, learning_rate: float = 2e-3
) -> list[Figures]:
    """Make the tokenizer, the model and its warm start, and write a Hugging Face folder.

    Args:
        out: the folder, made if missing. `warm_start.json` in it keeps the arguments and the figures.
        seed: decides weights, games and figures; the same seed gives the same model on the same machine.
        steps: optimiser steps.
        games_per_step: imitated games per step; each gives two trajectories.
        learning_rate: peak; warmed up over 5 % of the steps, then lowered along a cosine.

    Returns:
        Figures on 400 held-out states, sampled at temperatures 1.0 and 0.7, and greedy.
    """
    import torch
    from rich.progress import track

    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    tokenizer = save_tokenizer(out)
    chat, game, model = ChatTokenizer(tokenizer), MatchingGame(TINY_GAME), new_model(tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for step in track(range(steps), description="warm start"):
        rng = state_rng(seed, step, WARM_START)
        plays = [imitated_play(game, chat, Teacher(), rng) for _ in range(games_per_step)]
        loss = own_token_loss(model, [stream for play in plays for stream in play])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.eval()
    model.save_pretrained(out)
    seconds = time.monotonic() - started
    states = [game.sample_state(state_rng(seed, index, HELD_OUT)) for index in range(400)]
    figures = [measure(model, chat, game, states, temperature, seed) for temperature in (1.0, 0.7, 0.0)]
    report = {
        "seed": seed,
        "steps": steps,
        "games_per_step": games_per_step,
        "learning_rate": learning_rate,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": round(seconds),
        "teacher": asdict(Teacher()),
        "game": TINY_GAME.model_dump(),
        "figures": [asdict(figure) for figure in figures],
    }
    (out / "warm_start.json").write_text(json.dumps(report, indent=2) + "\n")
    return figures


def new_model(tokenizer: Any) -> Any:
    """An untrained `Qwen2ForCausalLM` in float32. The head is not tied: exports of tied heads are easily misread."""
    import torch
    from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def imitated_play(
    game: MatchingGame, chat: ChatTokenizer, player: ScriptedPlayer, rng: np.random.Generator
) -> list[Stream]:
    """A play of the scripted player with itself on a new state, as the two token streams that a policy would see."""
    state = game.sample_state(rng)
    session, streams = game.start(state), open_streams(game, chat, state)
    history: list[tuple[int, str]] = []
    while session.status is None:
        text = player.act(player_view(session, history), rng)
        stream = streams[session.player]
        stream.prompt()
        history.append((session.player, text))
        stream.reply(_completion([*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn]))
        for hearer, observation in zip(streams, session.step(text).observations, strict=True):
            hearer.observe(observation)
    return streams


def player_view(session: MatchingSession, history: Sequence[tuple[int, str]]) -> PlayerView:
    """What the acting player knows."""
    state, config = session.state, session.config
    return PlayerView(
        player=session.player,
        table=tuple(map(tuple, state.view(session.player))),
        papers=state.papers,
        reviewers=state.reviewers,
        history=tuple(history),
        pending=session.pending,
        max_score=config.max_score,
        scales=(config.scale_min, config.scale_max),
    )


def open_streams(game: MatchingGame, chat: ChatTokenizer, state: MatchingState) -> list[Stream]:
    """The two players' empty trajectories."""
    openings = [game.start(state).opening(player) for player in (0, 1)]
    return [Stream(chat, player, opening.system, [opening.observation]) for player, opening in enumerate(openings)]


def own_token_loss(model: Any, streams: Sequence[Stream]) -> Any:
    """Mean cross-entropy of the streams' own tokens, given all that stands before them."""
    import torch

    spoken = [stream for stream in streams if stream.response_ids]
    rows = [stream.prompt_ids + stream.response_ids for stream in spoken]
    masks = [[0] * len(stream.prompt_ids) + [*map(int, stream.response_mask)] for stream in spoken]
    width = max(map(len, rows))
    ids = torch.tensor([row + [model.config.pad_token_id] * (width - len(row)) for row in rows])
    own = torch.tensor([mask + [0] * (width - len(mask)) for mask in masks], dtype=torch.bool)
    # Padding stands on the right and attention is causal, so that no attention mask is needed.
    hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
    logits = model.lm_head(hidden[own[:, 1:]])
    return torch.nn.functional.cross_entropy(logits, ids[:, 1:][own[:, 1:]])


def measure(
    model: Any, chat: ChatTokenizer, game: MatchingGame, states: Sequence[MatchingState], temperature: float, seed: int
) -> Figures:
    """Let the model play both seats of every state once."""
    import torch

    torch.manual_seed(seed)
    outcomes, streams = play_batch(model, chat, game, states, temperature)
    rewards = np.array([outcome.normalized_reward for outcome in outcomes])
    agreed = np.array([outcome.status is Status.AGREED for outcome in outcomes])
    turns = sum(outcome.num_turns for outcome in outcomes)
    sampled = sum(sum(stream.response_mask) for stream in streams)
    return Figures(
        temperature=temperature,
        plays=len(outcomes),
        reward=round(float(rewards.mean()), 4),
        standard_error=round(float(rewards.std() / len(rewards) ** 0.5), 4),
        agreed=round(float(agreed.mean()), 4),
        agreed_reward=round(float(rewards[agreed].mean()) if agreed.any() else 0.0, 4),
        optimal=round(float((rewards == 1).mean()), 4),
        legal=round(1 - sum(outcome.num_illegal for outcome in outcomes) / turns, 4),
        tokens_per_turn=round(sampled / turns, 1),
        tokens_per_play=round(sum(len(s.prompt_ids) + len(s.response_ids) for s in streams) / len(outcomes), 1),
    )


def play_batch(
    model: Any, chat: ChatTokenizer, game: MatchingGame, states: Sequence[MatchingState], temperature: float
) -> tuple[list[Outcome], list[Stream]]:
    """Self-play of one play per state, all plays turn by turn together."""
    sessions = [game.start(state) for state in states]
    streams = [open_streams(game, chat, state) for state in states]
    while live := [index for index, session in enumerate(sessions) if session.status is None]:
        acting = [streams[index][sessions[index].player] for index in live]
        replies = _sample(model, [stream.prompt() for stream in acting], temperature)
        for index, stream, reply in zip(live, acting, replies, strict=True):
            cut = reply[-1] != chat.end_of_turn
            text = stream.reply(_completion(reply, FinishReason.LENGTH if cut else FinishReason.STOP))
            step = sessions[index].step(text, cut=cut)
            for hearer, observation in zip(streams[index], step.observations, strict=True):
                hearer.observe(observation)
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


def _completion(ids: list[int], finish: FinishReason = FinishReason.STOP) -> Completion:
    return Completion(ids, [0.0] * len(ids), finish, prompt_tokens=0, cached_tokens=0)
