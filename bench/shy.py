"""Do questions rise in training opposite the shy partner, and are they worth more than a coin's?

For each seed: train, and train again on rewards permuted within groups, a placebo that can learn nothing; analyse how
both asked over the iterations; evaluate the last checkpoints and the warm start on held-out states of the seed's own,
so that seeds are independent of each other.
Questions rose if they rose more than the placebos allow for. What was learned about asking is the reward above that of
a script which tosses a coin and asks as often. Everything is resumable, so that a stopped benchmark continues.
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
from bench.coins import CHANCES, AgainstPlacebo, above_coin, against_placebo, play_coin
from selfplay_pipeline.asking.analysis import TRENDS, Analysis, analyse
from selfplay_pipeline.asking.output import write
from selfplay_pipeline.asking.sources import read
from selfplay_pipeline.config import Config, load_config
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states, references
from selfplay_pipeline.games.matching.teacher import AskingTeacher
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.run import run_iterate
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.servers import Servers

SHOWN = ("reward", "optimal", "questions", "specific", "repeated", "learned", "leaks", "turns", "illegal")
COIN_EPISODES = 4
"""Of each state and coin."""
ARMS = {"trained": False, "placebo": True}
"""Whether rewards are permuted."""


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    iterations: Annotated[int, typer.Option(min=2)] = 10,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 500,
    model: Annotated[str | None, typer.Option(help="Warm start [default: that of tiny_shy].")] = None,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/shy"),
    output: Annotated[Path, typer.Option(help="Gets results.json, and the analysis of each seed and arm.")] = Path(
        "docs/results/shy"
    ),
) -> None:
    """Train opposite the shy partner, and placebos beside it, and say whether questions and reward rose or fell."""

    def configured(seed: int, *, placebo: bool) -> Config:
        keys = {"iterate.num_iterations": iterations, "model": model, "seed": seed, "convert.placebo": placebo}
        return load_config("tiny_shy", keys)

    config = configured(0, placebo=False)
    game = make_game(config.game)
    trends: dict[str, list[Analysis]] = {arm: [] for arm in ARMS}
    figures: dict[str, dict[str, Any]] = {}
    for seed in range(1, seeds + 1):
        held_out = held_out_states(game, states, seed)
        coins = {
            chance: play_coin(game, held_out.states, AskingTeacher(ask=chance), config.iterate.partner, COIN_EPISODES)
            for chance in CHANCES
        }
        figures[str(seed)] = {
            "references": {name: line.model_dump() for name, line in references(game, held_out).items()},
            "coins": {str(chance): _plain(totals.intervals()) for chance, totals in coins.items()},
        }
        for arm, placebo in ARMS.items():
            own, name = configured(seed, placebo=placebo), f"{arm}_{seed}"
            run = run_iterate(own, work / name)
            analysis = analyse(read(run.path))
            write(analysis, ["png"], output / name)
            folders = work / f"warm_start_{seed}_evaluated", work / f"{name}_evaluated"
            played = asyncio.run(_compare(own, held_out, coins, folders, run.checkpoint(iterations)))
            trends[arm].append(analysis)
            figures[str(seed)][arm] = {"verdicts": analysis.verdicts, **played}
    beyond = {name: _beyond_placebo(name, trends) for name in TRENDS}
    results = {
        "command": shlex.join(["python", "-m", "bench.shy", *sys.argv[1:]]),
        "config": config.model_dump(mode="json", exclude={"engine", "seed"}),
        "states_of_each_seed": states,
        "seeds": figures,
        "beyond_placebo": {name: [each.model_dump() for each in found] for name, found in beyond.items()},
    }
    write_json(output / "results.json", results)
    for name, found in beyond.items():
        print("\n".join(f"{name}, seed {seed}, {each}" for seed, each in enumerate(found, start=1)))


def _beyond_placebo(name: str, trends: Mapping[str, Sequence[Analysis]]) -> list[AgainstPlacebo]:
    """For each seed how a figure's slope over the iterations compares with those of the placebos."""
    slopes = {arm: [analysis.trends[name].slope.value or 0.0 for analysis in found] for arm, found in trends.items()}
    return [against_placebo(slope, slopes["placebo"]) for slope in slopes["trained"]]


async def _compare(
    config: Config, states: StateSet, coins: Mapping[float, Totals], folders: tuple[Path, Path], trained: str
) -> dict[str, Any]:
    """Figures of the warm start and of the last checkpoint opposite the partner, their differences, and coins.

    Args:
        folders: of both evaluations; that of the warm start is played once for all arms of a seed.
    """
    partner = config.iterate.partner
    before, after = (
        EvaluationJob(player, states, folder, partner, first_only=True)
        for player, folder in zip((str(config.model), trained), folders, strict=True)
    )
    async with Servers(config.engine, folders[1]) as servers:
        for job in (before, after):
            await run_evaluate(config, job, servers)
    figures: dict[str, Any] = {}
    for mode in after.modes:
        totals = {"before": totals_of(config, before, mode), "after": totals_of(config, after, mode)}
        figures[mode] = {when: _plain(found.intervals()) for when, found in totals.items()}
        figures[mode]["difference"] = _plain(contrast([(1, totals["after"]), (-1, totals["before"])]))
        figures[mode]["above_coin"] = {when: above_coin(found, coins).model_dump() for when, found in totals.items()}
    return figures


def _plain(lines: Mapping[str, Interval]) -> dict[str, Any]:
    return {name: line.model_dump() for name, line in lines.items() if name in SHOWN}


if __name__ == "__main__":
    command.run(main)
