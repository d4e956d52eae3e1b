"""Tests that two commands at one attached server each record log-probs of their own weights.

Each pair are two commands drawn at random (generate, evaluate, listen, iterate) with one of two models each, at one
SGLang server, begun with a random delay. Afterwards the log-probs of every recorded trajectory are computed again with
transformers, from the checkpoint that the record names.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.command import run
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.generate.records import EpisodeRecord, read_episodes

MODELS = ("data/tiny_honest_model", "data/tiny_model")
KINDS = {"generate": 6, "evaluate": 6, "listen": 3, "iterate": 1}
"""Relative frequency of each command."""
FILES = ("games.jsonl", "selfplay_games.jsonl", "sampled.jsonl", "greedy.jsonl", "heard.jsonl")
LARGEST_GAP = 1e-4
"""Largest difference of a log-prob in float32 that rounding explains."""
GENERATE = {"num_episodes": 512, "episodes_per_state": 4, "max_concurrency": 16, "temperature": 1.0}
TRAIN = {"train_batch_size": 16, "micro_batch_size": 16, "mini_batches": 1, "keep_zero_signal": True}
SHARED = 0.25
"""Share of the pairs whose models are drawn independently, and may be the same one."""
DELAY = 2.0
"""Longest delay between the starts of the two commands of a pair, in seconds."""


@dataclass(frozen=True)
class Drawn:
    """One command of a pair."""

    kind: str
    model: str
    output: Path

    def line(self, url: str, config: Path, seed: int) -> list[str]:
        where = ["--config", str(config), "--server-url", url, "--output", str(self.output)]
        if self.kind == "generate":
            return [
                "generate",
                "--model",
                self.model,
                "--seed",
                str(seed),
                *where[:-1],
                str(self.output / "games.jsonl"),
            ]
        if self.kind == "iterate":
            return ["iterate", "--model", self.model, "--num-iterations", "1", *where]
        return [self.kind, self.model, "--num-states", "128", *where]


def main(
    pairs: Annotated[int, typer.Option(help="Number of pairs.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the pairs and of their delays.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for the episodes.")] = Path("data/beside"),
    strangers: Annotated[bool, typer.Option(help="Let each command see no lock of the other one.")] = False,
) -> None:
    """Run pairs of commands at one server, and compute their log-probs again."""
    output.mkdir(parents=True, exist_ok=True)
    config = output / "config.yaml"
    sections = {"generate": GENERATE, "train": TRAIN, "iterate": {"evaluate_states": 8}}
    config.write_text(json.dumps({"base": "tiny_honest", **sections}))
    spec = ServerSpec(model=str(Path(MODELS[0]).resolve()), device="cpu", log_path=output / "server.log")
    server = SGLangServer(spec)
    server.key = ""
    asyncio.run(server.start())
    total: Counter[str] = Counter()
    try:
        for number in range(pairs):
            total.update(
                _pair(
                    random.Random(f"{seed} {number}"), output / f"pair_{number}", server.url, config, number, strangers
                )
            )
    finally:
        server.stop()
    print(json.dumps({"pairs": pairs, **total}))


def _pair(draw: random.Random, folder: Path, url: str, config: Path, seed: int, strangers: bool) -> Counter[str]:
    kinds = draw.choices(list(KINDS), list(KINDS.values()), k=2)
    models = [draw.choice(MODELS) for _ in kinds] if draw.random() < SHARED else draw.sample(MODELS, k=2)
    drawn = [Drawn(kind, models[at], folder / f"{at}_{kind}") for at, kind in enumerate(kinds)]
    running, started = [], time.monotonic()
    for at, one in enumerate(drawn):
        time.sleep(at * draw.uniform(0, DELAY))
        one.output.mkdir(parents=True)
        command = [sys.executable, "-m", "selfplay_pipeline", *one.line(url, config, seed)]
        env = os.environ | ({"XDG_CACHE_HOME": str(folder / f"cache_{at}")} if strangers else {})
        with (folder / f"{at}.log").open("w") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env))
    codes = [process.wait(1800) for process in running]
    total: Counter[str] = Counter({"commands": 2})
    for at, (one, code) in enumerate(zip(drawn, codes, strict=True)):
        found = checked(one.output)
        said = (folder / f"{at}.log").read_text()
        figures: dict[str, Any] = {"kind": one.kind, "model": one.model, "code": code, **found}
        figures["waited"] = "is in use by" in said
        print(json.dumps({"pair": folder.name, **figures, "seconds": round(time.monotonic() - started)}), flush=True)
        total.update(found)
        total.update({f"exit code {code}": 1, "waited": int(figures["waited"])})
    return total


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


if __name__ == "__main__":
    run(main)
