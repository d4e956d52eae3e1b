"""Measures the peak memory of a real training against the estimate of `selfplay doctor`, on a CPU.

 python -m bench.memory --rows 8 --tokens 300

The model has Qwen2.5-0.5B's sizes (https://huggingface.co/Qwen/Qwen2.5-0.5B, Apache-2.0) and random weights; the
tokenizer is the tiny model's, since a training reads ids. The run takes about 12 GB and some minutes on a core.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench.command import run
from bench.qwen import SIZES
from bench.race.measure import measured
from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.core.shapes import shapes_of
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.train.fit import setup_of
from selfplay_pipeline.train.memory import needs, on_device

sys.path.append(str(Path(__file__).parents[1] / "tests" / "slow"))
from training_rows import training_row, write_training_rows

HIGHEST = 300
"""Upper bound of the rows' token ids; their values make no difference."""
BUILD = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
torch.manual_seed(0)
config = AutoConfig.from_pretrained(sys.argv[1])
AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(sys.argv[1])
"""
"""Program that builds the model in a process of its own, whose memory is released."""


def build(folder: Path, sizes: dict[str, Any]) -> None:
    """Write a model with random weights."""
    tokenizer = Path(shipped("data/tiny_model"))
    folder.mkdir()
    for file in (*tokenizer.glob("tokenizer*"), tokenizer / "chat_template.jinja"):
        shutil.copy(file, folder)
    (folder / "config.json").write_text(
        json.dumps(sizes | {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"})
    )
    subprocess.run([sys.executable, "-c", BUILD, str(folder)], check=True)


def write_rows(path: Path, rows: int, tokens: int) -> None:
    """Write groups of two episodes with different rewards; a quarter of each row is its prompt."""
    rng, prompt = np.random.default_rng(0), tokens // 4
    write_training_rows(path, [
        training_row(
            row // 4, row // 2 % 2, row % 2, float(row // 2 % 2),
            prompt=rng.integers(0, HIGHEST, prompt).tolist(),
            response=rng.integers(0, HIGHEST, tokens - prompt).tolist(),
            mask=[1] * (tokens - prompt), logprobs=[-12.0] * (tokens - prompt), episodes_per_state=2, temperature=1.0,
        )
        for row in range(rows)
    ])  # fmt: skip


def main(
    rows: Annotated[int, typer.Option(help="Rows to train on; two steps of half of them each.")] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens of each row.")] = 300,
    rows_per_pass: Annotated[int, typer.Option(help="Rows of one pass.")] = 1,
    checkpointing: Annotated[bool, typer.Option(help="Gradient checkpointing.")] = False,
    layers: Annotated[int, typer.Option(help="Layers of the model; 0 for the real 24.")] = 0,
    hidden: Annotated[int, typer.Option(help="Width of the model; 0 for the real 896.")] = 0,
) -> None:
    """Train, and print the estimated and the measured memory."""
    sizes = SIZES | ({"num_hidden_layers": layers} if layers else {})
    sizes |= {"hidden_size": hidden, "intermediate_size": 5 * hidden} if hidden else {}
    options = TrainOptions(
        train_batch_size=rows // 2, micro_batch_size=rows_per_pass, gradient_checkpointing=checkpointing, device="cpu"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build(folder / "model", sizes)
        write_rows(folder / "train.parquet", rows, tokens)
        section = options.model_dump(mode="json", exclude_unset=True)
        (folder / "config.yaml").write_text(json.dumps({"base": "tiny", "train": section | {"kl_coef": 0}}))
        command = [sys.executable, "-m", "selfplay_pipeline", "train", str(folder / "train.parquet")]
        command += ["--config", str(folder / "config.yaml"), "--model", str(folder / "model"), "--any-model"]
        taken = measured([*command, "--output", str(folder / "out")], folder / "log", dict(os.environ))
        shapes = shapes_of(str(folder / "model"))
        lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    setup = setup_of(options, "cpu", tokens=tokens * rows_per_pass)
    counted = needs(shapes, setup)
    print(json.dumps({
        "parameters": shapes.parameters,
        "steps": len(lines),
        "tokens_of_a_pass": setup.tokens,
        "checkpointing": checkpointing,
        "counted_gb": {need.what: round(need.device / 1e9, 2) for need in counted},
        "counted_total_gb": round(on_device(counted) / 1e9, 2),
        "measured_peak_gb": round(taken.peak / 1e9, 2),
        "counted_over_measured": round(on_device(counted) / taken.peak, 3),
        "seconds": round(taken.seconds, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    run(main)
