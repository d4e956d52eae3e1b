"""Tests whether the policy learns to ask against the shy partner: trainings, placebos, coins, seeds, and a verdict.

For each seed: train, and train again on rewards permuted within groups, a placebo that can learn nothing; analyse both
policies' questions over the iterations; evaluate the last checkpoints and the warm start on held-out states of the
seed's own, so that seeds are independent. `bench.asked` has the rule; questions rose if they rose more than the
placebos allow for. Everything is resumable, so that a stopped benchmark continues.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from bench.asked import MODES, PLACEBO, SHOWN, TRAINED, WARM, Seed, asked, tables
from bench.coin_plot import plot
from bench.coins import CHANCES, AgainstPlacebo, against_placebo, play_coin
from bench.compared import references_line
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import write_json, write_text
from selfplay_pipeline.evaluate.run import EvaluationJob, Mode, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states, references
from selfplay_pipeline.games.base import State
from selfplay_pipeline.games.matching.teacher import AskingTeacher
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals
from selfplay_pipeline.report.questions.analysis import TRENDS, Analysis, analyse, read
from selfplay_pipeline.report.questions.output import write

COIN_EPISODES = 4
"""Number of episodes per state and coin."""
ARMS = {TRAINED: False, PLACEBO: True}
"""Trainings, each with whether its rewards are permuted."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    iterations: Annotated[int, typer.Option(min=2)] = 10,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 500,
    model: Annotated[str, typer.Option(help="The warm start.")] = "data/tiny_shy_model",
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/shy"),
    output: Annotated[
        Path, typer.Option(help="Gets results.json, table.md, asked.png, and the analysis of each seed and arm.")
    ] = Path("docs/results/shy"),
) -> None:
    """Train against the shy partner, train placebos too, and say whether the policy learned to ask."""

    def configured(seed: int, *, placebo: bool) -> Config:
        keys = {"iterate.num_iterations": iterations, "model": model, "seed": seed, "convert.placebo": placebo}
        return load_config("tiny_shy", keys)

    config = configured(0, placebo=False)
    game = make_game(config.game)
    trends: dict[str, list[Analysis]] = {arm: [] for arm in ARMS}
    measured: list[Seed] = []
    every: list[State] = []
    of_seeds: dict[str, dict[str, Any]] = {}
    for seed in range(1, seeds + 1):
        held_out = held_out_states(game, states, seed)
        every += held_out.states
        coins = {
            chance: play_coin(game, held_out.states, AskingTeacher(ask=chance), config.iterate.partner, COIN_EPISODES)
            for chance in CHANCES
        }
        checkpoints = {WARM: str(config.model)}
        for arm, placebo in ARMS.items():
            run = stopping.run(run_iterate(configured(seed, placebo=placebo), work / f"{arm}_{seed}"))
            trends[arm].append(analyse(read(run.path)))
            write(trends[arm][-1], ["png"], output / f"{arm}_{seed}")
            checkpoints[arm] = run.checkpoint(iterations)
        players = asyncio.run(_play(configured(seed, placebo=False), held_out, checkpoints, work))
        measured.append(Seed(coins, players))
        of_seeds[str(seed)] = {
            "coins": {str(chance): _plain(totals.intervals()) for chance, totals in coins.items()},
            "verdicts": {arm: found[-1].verdicts for arm, found in trends.items()},
        }
        beyond = {name: _beyond_placebo(name, trends) for name in TRENDS}
        found = asked(measured)
        lines = references(game, StateSet("of all seeds", tuple(every)))
        results = {
            "command": shlex.join(["python", "-m", "bench.shy", *sys.argv[1:]]),
            "config": config.model_dump(mode="json", exclude={"engine", "seed"}),
            "states_of_each_seed": states,
            "references": {name: line.model_dump() for name, line in lines.items()},
            "seeds": of_seeds,
            "beyond_placebo": {name: [each.model_dump() for each in slopes] for name, slopes in beyond.items()},
            "over_seeds": found.model_dump(mode="json"),
        }
        write_json(output / "results.json", results)
        rose = "".join(f"- {name}, seed {seed}, {one}\n" for name in TRENDS for seed, one in enumerate(beyond[name], 1))
        write_text(output / "table.md", "\n".join([tables(found), references_line(lines), rose]))
        plot(found, lines["silence"], output / "asked.png")
    print((output / "table.md").read_text())


def _beyond_placebo(name: str, trends: Mapping[str, Sequence[Analysis]]) -> list[AgainstPlacebo]:
    """Returns, for each seed, the comparison of a figure's slope over the iterations with the placebos' slopes."""
    slopes = {arm: [analysis.trends[name].slope.value for analysis in found] for arm, found in trends.items()}
    placebos = [slope for slope in slopes[PLACEBO] if slope is not None]
    return [against_placebo(slope, placebos) for slope in slopes[TRAINED]]


async def _play(
    config: Config, states: StateSet, checkpoints: Mapping[str, str], work: Path
) -> dict[str, dict[Mode, Totals]]:
    """Returns the figures of each checkpoint with the partner."""
    found: dict[str, dict[Mode, Totals]] = {}
    async with Servers(config.engine, work) as servers:
        for name, checkpoint in checkpoints.items():
            folder = work / f"{name.replace(' ', '_')}_{config.seed}_evaluated"
            job = EvaluationJob(checkpoint, states, folder, config.iterate.partner, first_only=True)
            await run_evaluate(config, job, servers)
            found[name] = {mode: totals_of(config, job, mode) for mode in MODES}
    return found


def _plain(lines: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: line.model_dump() for name, line in lines.items() if name in SHOWN}


if __name__ == "__main__":
    command.run(main)
