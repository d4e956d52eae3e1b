"""Compares recorded log-probs with those of the checkpoint that a record names, computed with transformers."""

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord

MODELS = ("data/tiny_honest_model", "data/tiny_model")
FILES = ("games.jsonl", "selfplay_games.jsonl", "sampled.jsonl", "greedy.jsonl", "heard.jsonl")
LARGEST_GAP = 1e-4
"""Largest difference of a log-prob in float32 that rounding explains."""


def checked(folder: Path) -> Counter[str]:
    """Returns the numbers of recorded episodes, of log-probs, and of episodes that do not fit the named checkpoint."""
    found: Counter[str] = Counter()
    for file in sorted(path for path in folder.rglob("*.jsonl") if path.name in FILES):
        for record in read_episodes(file):
            found["episodes"] += 1
            found["log-probs"] += sum(sum(trajectory.response_mask) for trajectory in record.trajectories)
            found["wrong episodes"] += largest_gap(record) > LARGEST_GAP
    return found


def largest_gap(record: EpisodeRecord) -> float:
    """Returns the largest difference of a recorded log-prob from the one of the checkpoint that the record names."""
    import torch

    largest = 0.0
    for trajectory in filter(lambda trajectory: trajectory.response_ids, record.trajectories):
        sampler = record.sampler_of(trajectory)
        ids = torch.tensor([trajectory.prompt_ids + trajectory.response_ids])
        with torch.inference_mode():
            logits = _model(sampler.checkpoint, content_hash(sampler.checkpoint))(ids).logits[0].float() / (
                sampler.temperature or 1.0
            )
        begin = len(trajectory.prompt_ids) - 1
        logprobs = torch.log_softmax(logits[begin:-1], -1)
        own = torch.tensor(trajectory.response_mask).bool()
        computed = logprobs.gather(1, torch.tensor(trajectory.response_ids)[:, None])[:, 0]
        gaps = (computed - torch.tensor(trajectory.response_logprobs))[own].abs()
        largest = max(largest, float(gaps.max()) if len(gaps) else 0.0)
    return largest


@cache
def _model(checkpoint: str, weights: str) -> Any:
    """Returns the model of a folder; `weights`, its content hash, distinguishes a replaced one."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").eval()
