"""GRPO beside filtered behaviour cloning: the same warm start, episodes and seeds, and what each training took.

python -m bench.methods

Filtered behaviour cloning imitates fewer rows and may want another learning rate than GRPO, so that several are tried;
the best of them is a figure that its own table selected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from bench import command
from bench.arms import MODES, WARM
from bench.verdict import in_brackets
from selfplay_pipeline.config import Config, load_config
from selfplay_pipeline.core.files import write_json, write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.manifest import RunState
from selfplay_pipeline.iterate.run import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds
from selfplay_pipeline.servers import Servers

GRPO = "grpo"
RATES = [7e-5, 3e-4]
Outcomes = Mapping[int, Mapping[str, Mapping[Mode, Totals]]]
"""Evaluations by seed and arm."""


class Budget(BaseModel):
    """What the trainings of an arm took, as means over seeds."""

    episodes: float
    rows: float
    own_tokens: float
    updates: float
    minutes: float


class Row(BaseModel):
    """An arm: its rewards, by the way to sample, and its rises over the warm start."""

    reward: dict[Mode, Interval]
    rise: dict[Mode, Interval]
    minus_grpo: dict[Mode, Interval]
    budget: Budget


@dataclass(frozen=True)
class Study:
    """What is compared: the arms by name with what they change, and where it goes."""

    source: str
    arms: Mapping[str, Mapping[str, Any]]
    iterations: int
    states: int
    episodes: int
    work: Path

    def config(self, seed: int, arm: str) -> Config:
        fixed = {"seed": seed, "iterate.num_iterations": self.iterations, "iterate.evaluate_every": 0}
        return load_config(self.source, fixed | dict(self.arms.get(arm, {})))

    def folder(self, seed: int, arm: str) -> Path:
        return self.work / f"seed_{seed}" / arm.replace(" ", "_")

    async def evaluate(self, seed: int, checkpoints: Mapping[str, str]) -> dict[str, dict[Mode, Totals]]:
        """The figures of each checkpoint on held-out states of the seed's own."""
        found: dict[str, dict[Mode, Totals]] = {}
        config = self.config(seed, WARM)
        states = held_out_states(make_game(config.game), self.states, seed)
        async with Servers(config.engine, self.work) as servers:
            for name, checkpoint in checkpoints.items():
                folder = self.folder(seed, name) / "evaluation"
                job = EvaluationJob(checkpoint, states, folder, episodes=self.episodes)
                await run_evaluate(config, job, servers)
                found[name] = {mode: totals_of(config, job, mode) for mode in MODES}
        return found


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 8,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "tiny",
    rates: Annotated[
        list[float], typer.Option("--learning-rate", help="Of filtered behaviour cloning; repeat to try several.")
    ] = RATES,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 500,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 2,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/methods"),
    output: Annotated[Path, typer.Option(help="Gets results.json and table.md.")] = Path("docs/results/methods"),
) -> None:
    """Train with both methods and print one table; what is done is not done again."""
    arms: dict[str, dict[str, Any]] = {GRPO: {}}
    arms |= {f"filtered-bc {rate:g}": {"train.method": "filtered-bc", "train.learning_rate": rate} for rate in rates}
    study = Study(config, arms, iterations, states, episodes, work)
    trained: dict[str, list[RunState]] = {arm: [] for arm in study.arms}
    outcomes: dict[int, dict[str, dict[Mode, Totals]]] = {}
    for seed in range(1, seeds + 1):
        checkpoints = {WARM: str(study.config(seed, WARM).model)}
        for arm in study.arms:
            say(f"{arm}, seed {seed} of {seeds}")
            run = run_iterate(study.config(seed, arm), study.folder(seed, arm) / "run")
            checkpoints[arm] = run.checkpoint(iterations)
            trained[arm].append(run.state)
        outcomes[seed] = asyncio.run(study.evaluate(seed, checkpoints))
    rows = {arm: row_of(arm, outcomes, [budget_of(state) for state in trained[arm]]) for arm in study.arms}
    write_json(output / "results.json", {arm: row.model_dump(mode="json") for arm, row in rows.items()})
    write_text(output / "table.md", table(rows))
    print(table(rows))


def budget_of(state: RunState) -> Budget:
    """What one run took, in all its iterations."""
    numbers = [number for number in state.iterations if number]
    trained = [training for number in numbers if (training := state.trained(number))]
    played = [playing for number in numbers if (playing := state.played(number))]
    return Budget(
        episodes=sum(found.episodes or 0 for found in played),
        rows=sum(found.rows or 0 for found in trained),
        own_tokens=sum(found.own_tokens or 0 for found in trained),
        updates=sum(found.updates or 0 for found in trained),
        minutes=sum(stage.seconds for number in numbers for stage in state.iterations[number].values()) / 60,
    )


def row_of(arm: str, outcomes: Outcomes, budgets: Sequence[Budget]) -> Row:
    """An arm's figures over seeds and states."""

    def over(other: str | None) -> dict[Mode, Interval]:
        found: dict[Mode, Interval] = {}
        for mode in MODES:
            terms = [
                [(1.0, by_arm[arm][mode]), *([(-1.0, by_arm[other][mode])] if other else [])]
                for by_arm in outcomes.values()
            ]
            found[mode] = contrast_over_seeds(terms)["reward"]
        return found

    means = {name: sum(getattr(budget, name) for budget in budgets) / len(budgets) for name in Budget.model_fields}
    return Row(reward=over(None), rise=over(WARM), minus_grpo=over(GRPO), budget=Budget(**means))


def table(rows: Mapping[str, Row]) -> str:
    """Markdown: a row for each figure, a column for each arm."""
    lines: dict[str, list[str]] = {"": [*rows], "---": ["---"] * len(rows)}
    found = [*rows.values()]
    for mode in MODES:
        lines[f"reward, {mode}"] = [in_brackets(row.reward[mode]) for row in found]
        lines[f"rise, {mode}"] = [in_brackets(row.rise[mode], "+") for row in found]
        lines[f"minus GRPO, {mode}"] = [
            "" if arm == GRPO else in_brackets(row.minus_grpo[mode], "+") for arm, row in rows.items()
        ]
        lines[f"rise per 1,000 episodes, {mode}"] = [
            in_brackets(scaled(row.rise[mode], 1000 / row.budget.episodes), "+") for row in found
        ]
        lines[f"rise per minute, {mode}"] = [
            in_brackets(scaled(row.rise[mode], 1 / row.budget.minutes), "+") for row in found
        ]
    for name in Budget.model_fields:
        digits = 1 if name == "minutes" else 0
        lines[name.replace("_", " ")] = [f"{getattr(row.budget, name):,.{digits}f}" for row in found]
    return "".join(f"| {' | '.join([label, *cells])} |\n" for label, cells in lines.items())


def scaled(interval: Interval, factor: float) -> Interval:
    """An interval in another unit."""
    ends = {name: None if end is None else end * factor for name, end in interval.model_dump().items()}
    return Interval(**ends)


if __name__ == "__main__":
    command.run(main)
