"""Compares GRPO with filtered behaviour cloning: the same warm start, episodes, seeds and number of optimizer steps.

python -m bench.methods

Neither method has a KL term, since cloning can have none: GRPO is compared without the one of its configuration.

The methods may need different learning rates, and filtered behaviour cloning more episodes of each group. So candidates
of both are trained on a seed of their own first. Each method's candidate with the highest sampled reward there is
compared on other seeds and states, so that no figure of the comparison selected itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from bench import command
from bench.arms import MODES, WARM
from bench.compared import markdown_table, references_line
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states, references
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.iterate.folder import RunState
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast_over_seeds

GRPO, CLONING = "grpo", "filtered-bc"
GRPO_RATES = [1.5e-4, 3e-4, 6e-4]
CLONING_RATES = [3e-4, 1e-3]
BEST = [1, 4]
SELECTING = 0
"""Seed that selects the candidates; the seeds of the comparison begin with 1."""
Arms = Mapping[str, Mapping[str, Any]]
"""Trainings by name, each with the configuration keys that it changes."""
Outcomes = Mapping[int, Mapping[str, Mapping[Mode, Totals]]]
"""Evaluations by seed, arm and sampling mode."""


class Budget(BaseModel):
    """Effort of the trainings of an arm, as means over seeds."""

    episodes: float
    rows: float
    own_tokens: float
    updates: float
    minutes: float


class Row(BaseModel):
    """An arm: its rewards by sampling mode, its rises over the warm start, and its effort.

    `minus_grpo` is empty for GRPO itself, and for candidates, which are not compared yet.
    """

    reward: dict[Mode, Interval]
    rise: dict[Mode, Interval]
    minus_grpo: dict[Mode, Interval]
    budget: Budget


class Results(BaseModel):
    """Contents of `results.json`: the comparison, and the candidates on the seed that selects them."""

    configuration: str
    seeds: int
    iterations: int
    states: int
    episodes: int
    references: dict[str, Interval]
    comparison: dict[str, Row]
    selection: dict[str, Row]


@dataclass(frozen=True)
class Study:
    """Length of the trainings, their evaluation, and their folder.

    Attributes:
        source: Name or file of the configuration.
        states: Number of held-out states per seed.
        episodes: Number of sampled episodes per state; one more is played greedily.
    """

    source: str
    iterations: int
    states: int
    episodes: int
    work: Path

    def config(self, seed: int, changes: Mapping[str, Any] = {}) -> Config:
        fixed = {"seed": seed, "iterate.num_iterations": self.iterations, "iterate.evaluate_every": 0}
        return load_config(self.source, fixed | dict(changes))

    def folder(self, seed: int, arm: str) -> Path:
        return self.work / f"seed_{seed}" / arm.replace(" ", "_")

    def held_out(self, seed: int) -> StateSet:
        return held_out_states(make_game(self.config(seed).game), self.states, seed)

    def references(self, seeds: Iterable[int]) -> dict[str, Interval]:
        """Returns the reference lines for rewards, on the states of all these seeds."""
        states = tuple(state for seed in seeds for state in self.held_out(seed).states)
        return references(make_game(self.config(SELECTING).game), StateSet("of all seeds", states))

    async def evaluate(self, seed: int, checkpoints: Mapping[str, str]) -> dict[str, dict[Mode, Totals]]:
        """Returns the figures of each checkpoint on held-out states of the seed's own."""
        found: dict[str, dict[Mode, Totals]] = {}
        config = self.config(seed)
        states = self.held_out(seed)
        async with Servers(config.engine, self.work) as servers:
            for name, checkpoint in checkpoints.items():
                folder = self.folder(seed, name) / f"evaluation_after_{self.iterations}"
                job = EvaluationJob(checkpoint, states, folder, episodes=self.episodes)
                await run_evaluate(config, job, servers)
                found[name] = {mode: totals_of(config, job, mode) for mode in MODES}
        return found


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 1, 2, … on which the methods are compared.")] = 3,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 4,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "tiny_honest",
    grpo_rates: Annotated[
        list[float], typer.Option("--grpo-rate", help="Learning rate of GRPO; repeat to try several.")
    ] = GRPO_RATES,
    cloning_rates: Annotated[
        list[float], typer.Option("--cloning-rate", help="Learning rate of filtered-bc; repeat to try several.")
    ] = CLONING_RATES,
    best: Annotated[
        list[int],
        typer.Option("--best-of-group", min=1, help="Episodes of a group that filtered-bc imitates; repeat."),
    ] = BEST,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 300,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 2,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/methods"),
    output: Annotated[Path, typer.Option(help="Gets results.json and table.md.")] = Path("docs/results/methods"),
) -> None:
    """Select a candidate of each method, compare the two, and print tables. Finished parts are not repeated."""
    study = Study(config, iterations, states, episodes, work)
    of_grpo: Arms = {f"{GRPO} {rate:g}": grpo_of(rate) for rate in grpo_rates}
    of_cloning: Arms = {
        f"{CLONING} {rate:g} best {count}": cloning(study.config(SELECTING), rate, count)
        for rate in cloning_rates
        for count in best
    }
    candidates = {**of_grpo, **of_cloning}
    selection = measured(study, candidates, [SELECTING])
    grpo, other = best_of(of_grpo, selection), best_of(of_cloning, selection)
    comparison = measured(study, {name: candidates[name] for name in (grpo, other)}, range(1, seeds + 1), grpo)
    results = Results(
        configuration=config,
        seeds=seeds,
        iterations=iterations,
        states=states,
        episodes=episodes,
        references=study.references(range(1, seeds + 1)),
        comparison=comparison,
        selection=selection,
    )
    tables = "\n".join([table(comparison), references_line(results.references), selection_table(selection)])
    write_text(output / "results.json", results.model_dump_json(indent=2) + "\n")
    write_text(output / "table.md", tables)
    print(tables)


def grpo_of(rate: float) -> dict[str, Any]:
    """Returns the changes for GRPO without a KL term."""
    return {"train.learning_rate": rate, "train.kl_coef": 0.0}


def cloning(config: Config, rate: float, best: int) -> dict[str, Any]:
    """Returns the changes for filtered behaviour cloning with as many optimizer steps as GRPO has under a
    configuration.

    A batch of GRPO has all rows of its groups; a batch of cloning has those of the best episodes of as many groups.
    """
    rows = config.train.train_batch_size * best // config.generate.episodes_per_state
    return {
        "train.method": "filtered-bc",
        "train.best_of_group": best,
        "train.learning_rate": rate,
        "train.train_batch_size": rows,
    }


def best_of(arms: Arms, rows: Mapping[str, Row]) -> str:
    """Returns the arm with the highest sampled reward."""
    return max(arms, key=lambda name: rows[name].reward["sampled"].value or 0.0)


def measured(study: Study, arms: Arms, seeds: Iterable[int], grpo: str | None = None) -> dict[str, Row]:
    """Train these arms on each seed, and measure them against the warm start, and against GRPO if it is named."""
    budgets: dict[str, list[Budget]] = {arm: [] for arm in arms}
    outcomes: dict[int, dict[str, dict[Mode, Totals]]] = {}
    for seed in seeds:
        checkpoints = {WARM: str(study.config(seed).model)}
        for arm, changes in arms.items():
            say(f"{arm}, seed {seed}")
            run = stopping.run(run_iterate(study.config(seed, changes), study.folder(seed, arm) / "run"))
            checkpoints[arm] = run.checkpoint(study.iterations)
            budgets[arm].append(budget_of(run.state, study.iterations))
        outcomes[seed] = asyncio.run(study.evaluate(seed, checkpoints))
    return {arm: row_of(arm, outcomes, budgets[arm], grpo) for arm in arms}


def budget_of(state: RunState, iterations: int) -> Budget:
    """Returns the effort of the first iterations of a run."""
    numbers = range(1, iterations + 1)
    trained = [training for number in numbers if (training := state.trained(number))]
    played = [playing for number in numbers if (playing := state.played(number))]
    return Budget(
        episodes=sum(found.episodes or 0 for found in played),
        rows=sum(found.rows or 0 for found in trained),
        own_tokens=sum(found.own_tokens or 0 for found in trained),
        updates=sum(found.updates or 0 for found in trained),
        minutes=sum(stage.seconds for number in numbers for stage in state.iterations[number].values()) / 60,
    )


def mean_of(budgets: Sequence[Budget]) -> Budget:
    """Returns the mean effort over seeds."""
    means = {name: sum(getattr(budget, name) for budget in budgets) / len(budgets) for name in Budget.model_fields}
    return Budget(**means)


def row_of(arm: str, outcomes: Outcomes, budgets: Sequence[Budget], grpo: str | None = None) -> Row:
    """Returns an arm's figures over seeds and states."""

    def over(other: str | None) -> dict[Mode, Interval]:
        found: dict[Mode, Interval] = {}
        for mode in MODES:
            terms = [
                [(1.0, by_arm[arm][mode]), *([(-1.0, by_arm[other][mode])] if other else [])]
                for by_arm in outcomes.values()
            ]
            found[mode] = contrast_over_seeds(terms)["reward"]
        return found

    minus_grpo = over(grpo) if grpo not in (None, arm) else {}
    return Row(reward=over(None), rise=over(WARM), minus_grpo=minus_grpo, budget=mean_of(budgets))


def selection_table(rows: Mapping[str, Row]) -> str:
    """Returns Markdown with a row for each candidate, and the figures of the one seed that selected it."""
    lines = ["| candidate | reward, sampled | reward, greedy | updates |", "| --- | --- | --- | --- |"]
    for name, row in rows.items():
        rewards = [str(row.reward[mode]) for mode in MODES]
        lines.append(f"| {name} | {' | '.join(rewards)} | {row.budget.updates:,.0f} |")
    return "".join(f"{line}\n" for line in lines)


def table(rows: Mapping[str, Row]) -> str:
    """Returns Markdown with a row for each figure and a column for each arm."""
    lines: dict[str, list[str]] = {}
    found = [*rows.values()]
    for mode in MODES:
        lines[f"reward, {mode}"] = [str(row.reward[mode]) for row in found]
        lines[f"rise, {mode}"] = [f"{row.rise[mode]:+}" for row in found]
        lines[f"minus GRPO, {mode}"] = [f"{row.minus_grpo[mode]:+}" if row.minus_grpo else "" for row in found]
        lines[f"rise per 1,000 episodes, {mode}"] = [
            f"{row.rise[mode].scaled(1000 / row.budget.episodes):+}" for row in found
        ]
        lines[f"rise per minute, {mode}"] = [f"{row.rise[mode].scaled(1 / row.budget.minutes):+}" for row in found]
    for name in Budget.model_fields:
        digits = 1 if name == "minutes" else 0
        lines[name.replace("_", " ")] = [f"{getattr(row.budget, name):,.{digits}f}" for row in found]
    return markdown_table(rows, lines)


if __name__ == "__main__":
    command.run(main)
