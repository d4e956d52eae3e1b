"""Training with the real verl: what goes in is what was sampled, what comes out is a trained checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selfplay_pipeline.train.config import TrainConfig
from selfplay_pipeline.train.run import Progress, TrainResult, run_train

TEMPERATURE = 0.7
PLAYS = 2
GROUPS = 13
VOCABULARY = 64


def build_model(folder: Path, seed: int = 0) -> None:
    """A random Qwen2 of about 50,000 parameters whose configuration claims bfloat16, as Qwen's does."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=0.4,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }} <eos>{% endfor %}"
    wrapped.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**saved, "dtype": "bfloat16"}))


@lru_cache
def load(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def log_probs(model: Path, prompt: list[int], response: list[int]) -> list[float]:
    """Of the response under softmax(logits / temperature), by transformers' own forward pass in float32."""
    import torch

    with torch.no_grad():
        logits = load(model)(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(response)), torch.tensor(response)]
    values: list[float] = chosen.tolist()
    return values


def write_games(path: Path, model: Path, groups: int = GROUPS, alike: tuple[int, ...] = (), seed: int = 0) -> None:
    """Random dialogues with random rewards, as `convert` writes them; groups in `alike` score the same throughout."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        for play in range(PLAYS):
            reward = 0.5 if group in alike else round(0.1 + 0.8 * play + 0.01 * group % 0.1, 3)
            for player in range(2):
                prompt = rng.integers(2, VOCABULARY, rng.integers(5, 30)).tolist()
                mask = [1] * 4 + [0] * int(rng.integers(1, 9)) + [1] * int(rng.integers(1, 12))
                response = rng.integers(2, VOCABULARY, len(mask)).tolist()
                exact = log_probs(model, prompt, response)
                rows.append(
                    {
                        "data_source": "selfplay/matching",
                        "prompt": [{"role": "system", "content": "w2"}],
                        "messages": [{"role": "system", "content": "w2"}],
                        "agent_name": "selfplay",
                        "reward_model": {
                            "style": "rule", "ground_truth": "", "normalized_reward": reward, "game_state": "{}",
                        },
                        "extra_info": {
                            "index": group, "game_id": f"t-g{group:06d}-p{play}", "player_index": player, "play": play,
                            "status": "agreed", "plays_per_state": PLAYS, "num_turns": 4,
                        },
                        "prompt_ids": prompt,
                        "response_ids": response,
                        "response_mask": mask,
                        "response_logprobs": [value if own else 0.0 for value, own in zip(exact, mask, strict=True)],
                        "sampling_temperature": TEMPERATURE,
                    }
                )  # fmt: skip
    table = pa.Table.from_pylist(rows)
    metadata = {"schema_version": 1, "temperature": TEMPERATURE, "plays_per_state": PLAYS}
    pq.write_table(table.replace_schema_metadata({b"selfplay": json.dumps(metadata).encode()}), path)
