"""Runs one offline iteration with LoRA on a CPU, for a model as large as Qwen2.5-0.5B with Qwen's vocabulary.

 python -m bench.qwen_lora --episodes 16

The weights are random, so that no action is legal and all rewards are 0: groups without signal are kept, and an entropy
bonus moves the weights. The run shows that tokens, log-probs and weights pass through, and measures its cost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import pyarrow.parquet as pq
import typer

from bench.command import run
from bench.race.measure import measured
from selfplay_pipeline.generate.records import Trajectory, read_episodes

BUILD = "import sys, pathlib; from bench.qwen import build; build(pathlib.Path(sys.argv[1]))"
"""Program that builds the model in a process of its own, whose memory is released."""
CONFIG: dict[str, Any] = {
    "base": "tiny",
    "game": {"max_length": 4, "max_errors": 2},
    "engine": {"context_length": 1024},
    "generate": {"episodes_per_state": 4, "temperature": 1.0, "max_new_tokens": 16},
    "train": {
        "mini_batches": 1, "old_log_probs": "step", "micro_batch_size": 2, "keep_zero_signal": True,
        "kl_coef": 0.0, "overrides": ["actor_rollout_ref.actor.entropy_coeff=0.01"], "learning_rate": 1e-4,
        "lora_rank": 16, "lora_alpha": 32,
    },
}  # fmt: skip


def main(
    episodes: Annotated[int, typer.Option(help="Episodes, four of each state; each gives two rows.")] = 16,
) -> None:
    """Play, convert and train in a temporary folder, and print cost and outcome."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, config, games = folder / "model", folder / "config.yaml", folder / "selfplay_games.jsonl"
        subprocess.run([sys.executable, "-c", BUILD, str(model)], check=True)
        section = CONFIG | {"train": {**CONFIG["train"], "train_batch_size": 2 * episodes}}
        config.write_text(json.dumps(section))
        stages = {
            "generate": ["--num-episodes", str(episodes), "--output", str(games)],
            "convert": [str(games)],
            "train": [str(folder / "train.parquet"), "--output", str(folder / "out")],
        }
        for stage, arguments in stages.items():
            command = [sys.executable, "-m", "selfplay_pipeline", stage, *arguments, "--config", str(config)]
            taken = measured([*command, "--model", str(model)], folder / f"{stage}.log", dict(os.environ))
            print(json.dumps({"stage": stage, "seconds": round(taken.seconds), "peak_gb": round(taken.peak / 1e9, 2)}))
        print(json.dumps(outcome(folder)))


def outcome(folder: Path) -> dict[str, Any]:
    """Returns counts of rows with the sampled tokens, the gap between engine and trainer, and the changed weights."""
    from safetensors import safe_open
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    rows = pq.read_table(folder / "train.parquet").to_pylist()
    sampled = {
        (episode.episode_id, seat.seat): seat
        for episode in read_episodes(folder / "selfplay_games.jsonl")
        for seat in episode.trajectories
    }
    exact = sum(_same(row, sampled[row["extra_info"]["episode_id"], row["extra_info"]["seat"]]) for row in rows)
    again = sum(tokenizer.encode(tokenizer.decode(row["response_ids"])) == row["response_ids"] for row in rows)
    line = json.loads((folder / "out" / "metrics.jsonl").read_text().splitlines()[0])
    with (
        safe_open(folder / "model" / "model.safetensors", framework="pt") as before,
        safe_open(folder / "out" / "checkpoint" / "model.safetensors", framework="pt") as after,
    ):
        changed = sum(not before.get_tensor(name).float().equal(after.get_tensor(name)) for name in before.keys())  # noqa: SIM118
    return {
        "rows": len(rows),
        "tokens": sum(len(row["prompt_ids"]) + len(row["response_ids"]) for row in rows),
        "sampled_tokens": sum(sum(row["response_mask"]) for row in rows),
        "rows_with_the_sampled_tokens": exact,
        "rows_whose_text_gives_the_same_tokens_again": again,
        "log_prob_gap_mean": line["selfplay/log_prob_gap/mean"],
        "log_prob_gap_max": line["selfplay/log_prob_gap/max"],
        "seconds_of_the_step": round(line["timing_s/step"], 1),
        "weights_changed": changed,
    }


def _same(row: dict[str, Any], seat: Trajectory) -> bool:
    """Whether a row equals the seat's trajectory up to the last sampled token, where rows end."""
    length = len(row["response_ids"])
    parts = ("response_ids", seat.response_ids), ("response_mask", seat.response_mask)
    same = row["prompt_ids"] == seat.prompt_ids and all(row[name] == values[:length] for name, values in parts)
    return bool(same and not any(seat.response_mask[length:]))


if __name__ == "__main__":
    run(main)
