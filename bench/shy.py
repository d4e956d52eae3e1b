"""Do questions rise in training opposite the shy partner? The tiny model, from a warm start that asks a little.

A rise is no evidence of learning to ask (`asking.analysis.NO_EVIDENCE` has the reason).

For each seed: train, analyse how it asked over the iterations, and evaluate the last checkpoint beside the warm start
on the same held-out states. Everything is resumable, so that a stopped benchmark continues.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from selfplay_pipeline.asking.analysis import analyse
from selfplay_pipeline.asking.output import write
from selfplay_pipeline.asking.sources import read
from selfplay_pipeline.config import Config, load_config
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states, references
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.run import run_iterate
from selfplay_pipeline.metrics.bootstrap import contrast
from selfplay_pipeline.servers import Servers

STATE_SEED = 1
SHOWN = ("reward", "optimal", "questions", "specific", "repeated", "learned", "leaks", "turns", "illegal")


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 2,
    iterations: Annotated[int, typer.Option(min=2)] = 10,
    states: Annotated[int, typer.Option(min=2, help="Held-out states.")] = 500,
    work: Annotated[Path, typer.Option(help="Gets the runs and the episodes.")] = Path("data/shy"),
    output: Annotated[Path, typer.Option(help="Gets results.json, and the analysis of each seed.")] = Path(
        "docs/results/shy"
    ),
) -> None:
    """Train opposite the shy partner and say whether questions and reward rose or fell."""
    config = load_config("tiny_shy", {"iterate.num_iterations": iterations})
    held_out = held_out_states(make_game(config.game), states, STATE_SEED)
    results: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "bench.shy", *sys.argv[1:]]),
        "config": config.model_dump(mode="json", exclude={"engine", "seed"}),
        "states": held_out.name,
        "references": {name: line.model_dump() for name, line in references(make_game(config.game), held_out).items()},
        "seeds": {},
    }
    for seed in range(1, seeds + 1):
        run = run_iterate(config.model_copy(update={"seed": seed}), work / f"seed_{seed}")
        analysis = analyse(read(run.path))
        write(analysis, ["png"], output / f"seed_{seed}")
        figures = asyncio.run(_compare(config, held_out, work, seed, run.checkpoint(iterations)))
        results["seeds"][str(seed)] = {"verdicts": analysis.verdicts, **figures}
    write_json(output / "results.json", results)
    print(json.dumps({seed: entry["verdicts"] for seed, entry in results["seeds"].items()}))


async def _compare(config: Config, states: StateSet, work: Path, seed: int, trained: str) -> dict[str, Any]:
    """Figures of the warm start and of the last checkpoint opposite the shy partner, and their differences."""
    partner = config.iterate.partner
    before = EvaluationJob(str(config.model), states, work / "evaluation_before", partner, first_only=True)
    after = EvaluationJob(trained, states, work / f"evaluation_seed_{seed}", partner, first_only=True)
    async with Servers(config.engine, work) as servers:
        for job in (before, after):
            await run_evaluate(config, job, servers)
    figures: dict[str, Any] = {}
    for mode in after.modes:
        totals = [totals_of(config, job, mode) for job in (before, after)]
        found = {"before": totals[0].intervals(), "after": totals[1].intervals()}
        found["difference"] = contrast([(1, totals[1]), (-1, totals[0])])
        figures[mode] = {
            when: {name: line.model_dump() for name, line in lines.items() if name in SHOWN}
            for when, lines in found.items()
        }
    return figures


if __name__ == "__main__":
    command.run(main)
