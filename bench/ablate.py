"""Ablations: measures the contribution of each choice by changing it alone in the set-up `tiny`, with one seed."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from pydantic import BaseModel

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.loop import Loop, run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast

SEED = 1
STATE_SEED = 1
"""Seed of the held-out states; the set-up was tuned on those of seed 0."""


@dataclass
class OneEpisodeGroups(Loop):
    """Loop whose groups are the two rows of one episode.

    Each row counts as an episode of its own, so that verl puts the two rows into one group.
    """

    async def _convert(self, number: int, games: Path) -> Converted:
        converted = await super()._convert(number, games)
        path = self.run.rows(number)
        table = pq.read_table(path)
        rows = table.column("extra_info").to_pylist()
        for row in rows:
            row["index"] = row["index"] * row["episodes_per_state"] + row["episode"]
            row |= {"episode": row["seat"], "episodes_per_state": 2}
        counts = Counter(row["index"] for row in rows)
        for row in rows:
            row["group_rows"] = counts[row["index"]]
        field = table.schema.field("extra_info")
        column = table.schema.get_field_index("extra_info")
        pq.write_table(table.set_column(column, field, pa.array(rows, field.type)), path)
        return converted


NO_IMPORTANCE = ["algorithm.rollout_correction.rollout_is=null"]
ARMS: dict[str, tuple[str, dict[str, Any], type[Loop]]] = {
    "full": ("all choices as by default", {}, Loop),
    "one_episode_groups": (
        "(a) groups hold one episode's two rows",
        {"train.keep_zero_signal": True},
        OneEpisodeGroups,
    ),
    "no_importance": ("(b) importance correction off", {"train.overrides": NO_IMPORTANCE}, Loop),
    "two_epochs": ("(c) two epochs", {"train.epochs": 2}, Loop),
    "zero_signal_kept": ("(d) groups without signal kept", {"train.keep_zero_signal": True}, Loop),
}


class Row(BaseModel):
    """A line of the table: the figures of an arm, and the differences of its sampled reward."""

    label: str
    sampled: Interval
    greedy: Interval
    illegal: Interval
    rise: Interval
    minus_full: Interval


def main(
    iterations: Annotated[int, typer.Option(min=1, help="Of each arm.")] = 4,
    states: Annotated[int, typer.Option(min=2)] = 500,
    episodes: Annotated[int, typer.Option(min=1)] = 4,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/ablate"),
    output: Annotated[Path, typer.Option(help="Gets results.json and table.md.")] = Path("docs/results/ablate"),
) -> None:
    """Run all arms and print a table."""
    config = load_config("tiny", {"seed": SEED, "iterate.num_iterations": iterations, "iterate.evaluate_every": 0})
    held_out = held_out_states(make_game(config.game), states, STATE_SEED)
    checkpoints, labels = {"before": str(config.model)}, {"before": "warm start"}
    for name, (label, changes, loop) in ARMS.items():
        arm = load_config(
            "tiny", {"seed": SEED, "iterate.num_iterations": iterations, "iterate.evaluate_every": 0} | changes
        )
        run = stopping.run(run_iterate(arm, work / name, loop))
        checkpoints[name], labels[name] = run.checkpoint(iterations), label
    totals = asyncio.run(evaluate_all(config, checkpoints, held_out, episodes, work))
    rows = {name: _row(labels[name], totals[name], totals["before"], totals["full"]) for name in checkpoints}
    steps = {name: _steps(work / name) for name in ARMS}
    stored = {name: row.model_dump() for name, row in rows.items()}
    write_json(
        output / "results.json", {"command": "make ablate", "iterations": iterations, "rows": stored, "steps": steps}
    )
    table = _table(rows)
    (output / "table.md").write_text(table)
    print(table)
    print(json.dumps({"benchmark": "ablate", **{name: row.sampled.value for name, row in rows.items()}}))


async def evaluate_all(
    config: Config, checkpoints: dict[str, str], states: StateSet, episodes: int, work: Path
) -> dict[str, dict[str, Totals]]:
    totals: dict[str, dict[str, Totals]] = {}
    async with Servers(config.engine, work) as servers:
        for name, checkpoint in checkpoints.items():
            job = EvaluationJob(checkpoint, states, work / f"evaluation_{name}", episodes=episodes)
            await run_evaluate(config, job, servers)
            totals[name] = {mode: totals_of(config, job, mode) for mode in job.modes(config)}
    return totals


def _row(label: str, own: dict[str, Totals], before: dict[str, Totals], full: dict[str, Totals]) -> Row:
    sampled = own["sampled"].intervals()
    return Row(
        label=label,
        sampled=sampled["reward"],
        greedy=own["greedy"].intervals()["reward"],
        illegal=sampled["illegal"],
        rise=contrast([(1, own["sampled"]), (-1, before["sampled"])])["reward"],
        minus_full=contrast([(1, own["sampled"]), (-1, full["sampled"])])["reward"],
    )


def _steps(run: Path) -> list[int]:
    state = RunDirectory(run).load()
    return [trained.steps for number in state.iterations if (trained := state.trained(number))]


def _table(rows: dict[str, Row]) -> str:
    head = (
        "| set-up | sampled reward | greedy reward | illegal an episode | rise over the warm start | minus the "
        "default |\n"
    )
    head += "|---|---|---|---|---|---|\n"
    lines = [
        f"| {row.label} | {row.sampled} | {row.greedy} | {row.illegal} | {row.rise:+} | {row.minus_full:+} |\n"
        for row in rows.values()
    ]
    return head + "".join(lines)


if __name__ == "__main__":
    command.run(main)
