"""Compares PPO with and without an effect of its clip: batches of one update, and two set-ups where it acts.

All arms of a seed begin with the same warm start and play the same states. Everything is resumable.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import BaseModel

from bench import command
from bench.ablate import STATE_SEED, evaluate_all
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast

ONE_UPDATE: dict[str, Any] = {"train.train_batch_size": 128, "train.mini_batches": 1, "train.old_log_probs": "step"}
"""Options for one update per batch, as by default outside the tiny set-ups."""
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("default: one update a batch, ratio 1, importance weights", {}),
    "games": ("old log-probs of the games, clip 0.2", {"train.old_log_probs": "games"}),
    "two_mini_batches": ("two mini-batches, clip 0.2, importance weights", {"train.mini_batches": 2}),
}


class Row(BaseModel):
    """A line of the table: means over the seeds of an arm, and differences to the warm start and to the default."""

    label: str
    clipped: float
    sampled: Interval
    sampled_rise: Interval
    sampled_minus_default: Interval
    sampled_minus_default_by_seed: list[Interval]
    greedy: Interval
    greedy_rise: Interval
    greedy_minus_default: Interval
    greedy_minus_default_by_seed: list[Interval]
    illegal: Interval


def main(
    arms: Annotated[list[str], typer.Option("--arm", help="Arms beside the default; repeat.")] = list(ARMS)[1:],
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    iterations: Annotated[int, typer.Option(min=1)] = 4,
    states: Annotated[int, typer.Option(min=2, help="Held-out states.")] = 500,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 2,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/ablate/clip"),
    out: Annotated[Path, typer.Option(help="Gets clip.json and clip.md.")] = Path("docs/results/ablate"),
) -> None:
    """Train all arms with all seeds and print a table."""
    config = load_config("tiny", {})
    chosen = ["default", *arms]
    checkpoints, clipped = {"before": str(config.model)}, {}
    for seed in range(1, seeds + 1):
        for arm in chosen:
            name = f"{arm}_{seed}"
            run = stopping.run(run_iterate(_settings(arm, seed, iterations), work / name))
            checkpoints[name] = run.checkpoint(iterations)
            clipped[name] = _clipped_share([run.iteration(n) / "metrics.jsonl" for n in range(1, iterations + 1)])
    held_out = held_out_states(make_game(config.game), states, STATE_SEED)
    totals = asyncio.run(evaluate_all(config, checkpoints, held_out, episodes, work / f"after_{iterations}"))
    rows = {arm: _row(arm, seeds, totals, clipped) for arm in chosen}
    facts = {
        "command": shlex.join(["python", "-m", "bench.clip", *sys.argv[1:]]),
        "iterations": iterations,
        "seeds": seeds,
        "states": states,
    }
    stored = {arm: row.model_dump() for arm, row in rows.items()}
    write_json(out / "clip.json", facts | {"episodes": episodes, "rows": stored})
    table = _table(rows)
    (out / "clip.md").write_text(table)
    print(table)


def _settings(arm: str, seed: int, iterations: int) -> Config:
    fixed = {"seed": seed, "iterate.num_iterations": iterations, "iterate.evaluate_every": 0}
    return load_config("tiny", fixed | ONE_UPDATE | ARMS[arm][1])


def _clipped_share(files: list[Path]) -> float:
    """Returns the mean share of tokens that were clipped, over all training steps."""
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return float(np.mean([line["actor/pg_clipfrac"] for line in lines]))


def _row(arm: str, seeds: int, totals: dict[str, dict[str, Totals]], clipped: dict[str, float]) -> Row:
    """Returns means over seeds; intervals resample states, paired between arms."""

    def over_seeds(name: str, mode: str, sign: int = 1) -> list[tuple[float, Totals]]:
        return [(sign / seeds, totals[f"{name}_{seed}"][mode]) for seed in range(1, seeds + 1)]

    def figures(mode: str) -> dict[str, Any]:
        own, default = over_seeds(arm, mode), over_seeds("default", mode, -1)
        pairs = [(totals[f"{arm}_{seed}"][mode], totals[f"default_{seed}"][mode]) for seed in range(1, seeds + 1)]
        return {
            mode: contrast(own)["reward"],
            f"{mode}_rise": contrast([*own, (-1, totals["before"][mode])])["reward"],
            f"{mode}_minus_default": contrast([*own, *default])["reward"],
            f"{mode}_minus_default_by_seed": [contrast([(1, one), (-1, other)])["reward"] for one, other in pairs],
        }

    return Row(
        label=ARMS[arm][0],
        clipped=float(np.mean([clipped[f"{arm}_{seed}"] for seed in range(1, seeds + 1)])),
        illegal=contrast(over_seeds(arm, "sampled"))["illegal"],
        **figures("sampled"),
        **figures("greedy"),
    )


def _table(rows: dict[str, Row]) -> str:
    head = (
        "| set-up | tokens clipped | sampled reward | rise over the warm start | minus the default | by seed | greedy "
        "minus the default | illegal an episode |\n|---|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(
        f"| {row.label} | {row.clipped:.2%} | {row.sampled} | {row.sampled_rise:+} | {row.sampled_minus_default:+} | "
        f"{', '.join(format(seed.value, '+.3f') for seed in row.sampled_minus_default_by_seed)} | "
        f"{row.greedy_minus_default:+} | {row.illegal} |\n"
        for row in rows.values()
    )


if __name__ == "__main__":
    command.run(main)
