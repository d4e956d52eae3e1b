"""The tiny model: a Qwen2 of about a million parameters that plays one game, for machines without a model hub.

Its warm start imitates scripted players of the game's own, that speak its dialect but play poorly (`Game.lessons`).
That leaves self-play something to strengthen.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import filling
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.games.base import HELD_OUT, WARM_START, Game, state_rng
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream
from selfplay_pipeline.models.imitation import imitated_episode
from selfplay_pipeline.models.tiny_figures import Figures, measure
from selfplay_pipeline.models.tiny_tokenizer import build_tokenizer

CONTEXT_LENGTH = 1024


def build_tiny_model(
    out: Path | None,
    game: Game,
    lesson: str = "self-play",
    *,
    seed: int = 0,
    games_per_step: int = 32,
    learning_rate: float = 2e-3,
) -> list[Figures]:
    """Make the tokenizer, the model and its warm start, and write a Hugging Face folder.

    Args:
        out: the folder, made if missing; by default the lesson's. `warm_start.json` in it keeps the arguments and the
            figures.
        game: what it learns to play.
        lesson: a name in `Game.lessons`.
        seed: decides weights, episodes and figures; the same seed gives the same model on the same machine.
        games_per_step: imitated episodes per step.
        learning_rate: peak; warmed up over 5 % of the steps, then lowered along a cosine.

    Returns:
        Figures on 400 held-out states, sampled at temperatures 1.0 and 0.7, and greedy.

    Raises:
        UserError: the game has no such lesson.
    """
    if lesson not in game.lessons:
        there = ", ".join(game.lessons) or "none"
        raise UserError(f"no lesson {lesson!r} of the game {game.name}; there are: {there}")
    taught = game.lessons[lesson]
    steps = taught.steps
    out = out or taught.folder
    check_folder(out, "model")
    import torch
    from rich.progress import track

    from selfplay_pipeline.core.terminal import Terminal

    started = time.monotonic()
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(taught.words)
    chat, model = ChatTokenizer(tokenizer), new_model(tokenizer)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warm_up = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, 0.5 + 0.5 * math.cos(math.pi * step / steps))
    )
    for step in track(range(steps), description="warm start", console=Terminal()):
        rng = state_rng(seed, step, WARM_START)
        players = taught.early if step < 0.6 * steps else taught.late
        episodes = [imitated_episode(game, chat, players, rng) for _ in range(games_per_step)]
        loss = own_token_loss(model, [episode[seat] for episode in episodes for seat in taught.seats])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
    model.eval()
    seconds = time.monotonic() - started
    states = [game.sample_state(state_rng(seed, index, HELD_OUT)) for index in range(400)]
    figures = [measure(model, chat, game, states, temperature, seed, taught) for temperature in (1.0, 0.7, 0.0)]
    report = {
        "seed": seed,
        "steps": steps,
        "games_per_step": games_per_step,
        "learning_rate": learning_rate,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": round(seconds),
        "lesson": lesson,
        "teacher": repr(taught.late[0]),
        "game": game.config.model_dump(),
        "figures": [asdict(figure) for figure in figures],
    }
    with filling(out) as new:
        tokenizer.save_pretrained(new)
        model.save_pretrained(new)
        (new / "model.safetensors").chmod(0o644)
        (new / "warm_start.json").write_text(json.dumps(report, indent=2) + "\n")
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
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype=torch.float32,
    )
    model = Qwen2ForCausalLM(config)
    look_back(model, offsets=(1, 2))
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def look_back(model: Any, offsets: Sequence[int], strength: float = 6.0) -> None:
    """Let the first heads of the first layer start by attending to the token that stands `offset` before.

    A number then knows from the start which words it belongs to; to find that out by itself takes the model most of
    its training. With rotary embeddings (Su et al., arXiv 2104.09864) the constant query
    a·(cos oθ, −sin oθ) and key a·(1, 0) give the attention logit a² Σ cos((distance − o) θ).
    """
    import torch

    attention, width = model.model.layers[0].self_attn, model.model.layers[0].self_attn.head_dim
    frequencies = model.model.rotary_emb.inv_freq[:6]
    rest = torch.zeros(width // 2 - len(frequencies))
    with torch.no_grad():
        for head, offset in enumerate(offsets):
            rows = slice(head * width, (head + 1) * width)
            turned = strength * torch.cos(offset * frequencies), -strength * torch.sin(offset * frequencies)
            attention.q_proj.weight[rows] = 0
            attention.k_proj.weight[rows] = 0
            attention.q_proj.bias[rows] = torch.cat([turned[0], rest, turned[1], rest])
            attention.k_proj.bias[rows] = torch.cat([torch.full((6,), strength), torch.zeros(width - 6)])


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
