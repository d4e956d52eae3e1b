"""Trains with the pipeline and with TRL's GRPOTrainer from one warm start on the same states, and compares the effort.

Each seed trains both sides, and the first side alternates. Then both checkpoints and the warm start play the same
held-out states. Resumable: a finished side of a seed is not run again, an interrupted one is run from the beginning, so
that its time is that of one uninterrupted run.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from bench.race.measure import measured
from bench.race.table import SIDES, Figures, Rise, Side, table
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model, write_json, write_text
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate, totals_of
from selfplay_pipeline.evaluate.states import StateSet, held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.seats import Backends, Servers
from selfplay_pipeline.iterate.folder import RunDirectory, describe
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast

PROJECT = Path(__file__).parents[2]
CORES = len(os.sched_getaffinity(0))
QUICK = {"generate.num_episodes": 64, "iterate.num_iterations": 1}
QUICK_STATES = 20
STATE_SEED = 1
"""Seed of the held-out states; the set-up was tuned on those of seed 0."""


@dataclass(frozen=True)
class Race:
    """Trainings to run, and their folder.

    Attributes:
        source: Name or file of the configuration.
        changes: Values on top of `source`, by configuration key.
        peer: Python executable of TRL's environment.
    """

    source: str
    changes: dict[str, Any]
    seeds: int
    work: Path
    peer: Path

    @property
    def config(self) -> Config:
        return load_config(self.source, self.changes)

    def settings(self, seed: int) -> Config:
        return load_config(self.source, self.changes | {"seed": seed, "iterate.evaluate_every": 0})

    def folder(self, seed: int, side: Side) -> Path:
        return self.work / f"seed_{seed}" / side

    def record(self, seed: int, side: Side) -> Path:
        return self.work / f"seed_{seed}" / f"{side}.json"


def main(
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds 1, 2, …")] = 3,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "tiny",
    lora_rank: Annotated[int | None, typer.Option(min=0, help="Of both sides; 0 trains all weights.")] = None,
    states: Annotated[int, typer.Option(min=0, help="Held-out states; 0 compares costs alone.")] = 500,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="Does it work? One seed, one iteration, 64 episodes.")] = False,
    peer: Annotated[Path, typer.Option(help="The Python of TRL's environment.")] = Path(".venv-race/bin/python"),
    work: Annotated[Path, typer.Option(help="Gets a folder of runs, named after the configuration.")] = Path(
        "data/race"
    ),
    output: Annotated[Path, typer.Option(help="Gets a folder of results, named so too.")] = Path("docs/results/race"),
) -> None:
    """Race ours against TRL and print a table of their costs and rewards."""
    changes = {"train.lora_rank": lora_rank}
    if quick:
        race = Race(config, QUICK | changes, 1, work / "quick", peer)
        states, episodes, output = min(states, QUICK_STATES), 1, race.work
    else:
        name = Path(config).stem + ("_lora" if lora_rank else "")
        race, output = Race(config, changes, seeds, work / name, peer), output / name
    _claim(race)
    figures: dict[Side, list[Figures]] = defaultdict(list)
    for seed in range(1, race.seeds + 1):
        for side in SIDES if seed % 2 else SIDES[::-1]:
            figures[side].append(_figures(race, seed, side))
    rises = _rises(race, figures, states, episodes) if states else {}
    text = table(figures, rises)
    results = {
        "command": shlex.join(["python", "-m", "bench.race", *sys.argv[1:]]),
        **describe(race.config.model_dump(mode="json", exclude={"seed"})),
        "cores": CORES,
        "states": states,
        "episodes": episodes,
        "seeds": {side: [one.model_dump(exclude={"checkpoint"}) for one in found] for side, found in figures.items()},
        "held_out": {mode: rise.model_dump() for mode, rise in rises.items()},
    }
    write_json(output / "results.json", results)
    write_text(output / "table.md", text)
    print(text)


def _claim(race: Race) -> None:
    """Bind the folder to this race, so that all its runs have one configuration.

    Raises:
        UserError: The folder holds something else, TRL's environment is missing, or TRL could not train in such steps.
    """
    if not race.peer.exists():
        raise UserError(f"{race.peer}: TRL's environment is missing; `make race` makes it")
    config = race.config
    rows, batch = _rows_of(config), config.train.train_batch_size // config.train.mini_batches
    if rows > batch and rows % batch:
        raise UserError(
            f"TRL wants whole steps: {rows} rows of an iteration are no multiple of {batch} (train.train_batch_size "
            "over train.mini_batches)"
        )
    record, settings = race.work / "race.json", config.model_dump(mode="json")
    if not record.exists():
        if race.work.is_dir() and any(race.work.iterdir()):
            raise UserError(f"{race.work}: not a folder of `make race`; choose another one (--work)")
        write_json(record, settings)
    elif read_json(record) != settings:
        raise UserError(f"{race.work} holds a race with another configuration; choose another folder (--work)")


def _rows_of(config: Config) -> int:
    """Returns the number of rows of an iteration."""
    per_state = config.generate.episodes_per_state
    return -(-config.generate.num_episodes // per_state) * per_state * len(make_game(config.game).roles)


def _figures(race: Race, seed: int, side: Side) -> Figures:
    """Run a side, unless it is finished; returns its figures."""
    record, folder = race.record(seed, side), race.folder(seed, side)
    if not record.exists():
        shutil.rmtree(folder, ignore_errors=True)
        load = os.getloadavg()[0]
        say(f"seed {seed} of {race.seeds}: {side} (load {load:.1f}; log {folder.with_suffix('.log')})")
        run = {"ours": _ours, "trl": _peer}[side]
        write_json(record, run(race, seed, folder, load).model_dump())
    figures = read_model(record, Figures, "make race")
    say(
        f"seed {seed} of {race.seeds}: {side} took {figures.seconds:.1f} s: {figures.playing:.1f} playing, "
        f"{figures.in_steps:.1f} in steps, {figures.rest:.1f} rest, {figures.peak_gb:.2f} GB"
    )
    return figures


def _ours(race: Race, seed: int, folder: Path, load: float) -> Figures:
    """Run `selfplay iterate` as a user would start it."""
    config = race.settings(seed)
    options = {
        "--config": race.source,
        "--seed": seed,
        "--num-iterations": config.iterate.num_iterations,
        "--num-episodes": config.generate.num_episodes,
        "--output": folder,
    }
    arguments = [str(part) for option in options.items() for part in option]
    arguments += ["--set", f"train.lora_rank={config.train.lora_rank}", "--set", "iterate.evaluate_every=0"]
    command_line = [sys.executable, "-m", "selfplay_pipeline", "iterate", *arguments]
    taken = measured(command_line, folder.with_suffix(".log"), {})
    run = RunDirectory(folder)
    state, parts = run.load(), defaultdict[str, float](float)
    numbers, updates = range(1, config.iterate.num_iterations + 1), 0
    for number in numbers:
        for stage, done in state.iterations[number].items():
            parts[stage] += done.seconds
        metrics = run.iteration(number) / "metrics.jsonl"  # an iteration without any signal has none
        for line in metrics.read_text().splitlines() if metrics.exists() else []:
            for name, value in json.loads(line).items():
                if name.startswith("timing_s/"):
                    parts[name] += value
                updates += value if name == "selfplay/updates" else 0
    played, trained = [state.played(number) for number in numbers], [state.trained(number) for number in numbers]
    return Figures(
        seconds=taken.seconds,
        playing=sum(one.seconds or 0.0 for one in played if one),
        in_steps=sum(one.seconds_in_steps for one in trained if one),
        episodes=sum(one.episodes or 0 for one in played if one),
        rows=sum(one.rows or 0 for one in trained if one),
        steps=updates,
        processor=taken.processor,
        peak_gb=taken.peak / 1e9,
        looking=taken.looking,
        load=load,
        checkpoint=run.checkpoint(numbers[-1]),
        parts={name: round(value, 2) for name, value in parts.items()},
    )


def _peer(race: Race, seed: int, folder: Path, load: float) -> Figures:
    """Run TRL, on all cores unless the environment says otherwise, as our trainer does."""
    settings = folder.with_suffix(".settings.json")
    write_json(settings, race.settings(seed).model_dump(mode="json"))
    arguments = [str(path.absolute()) for path in (settings, folder)]
    # Not resolved: the link tells Python its environment.
    taken = measured(
        [str(race.peer.absolute()), "-m", "bench.race.peer", *arguments],
        folder.with_suffix(".log"),
        {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(CORES)), "PYTHONPATH": str(PROJECT)},
    )
    return Figures(
        **read_json(folder / "report.json"),
        seconds=taken.seconds,
        processor=taken.processor,
        peak_gb=taken.peak / 1e9,
        looking=taken.looking,
        load=load,
    )


def _rises(race: Race, figures: dict[Side, list[Figures]], states: int, episodes: int) -> dict[str, Rise]:
    """Returns the held-out reward of all checkpoints minus the warm start's; intervals resample states."""
    config = race.config
    checkpoints = {"before": str(config.model)}
    checkpoints |= {f"{side}_{at}": one.checkpoint for side in SIDES for at, one in enumerate(figures[side], start=1)}
    held_out = held_out_states(make_game(config.game), states, STATE_SEED)
    totals = asyncio.run(
        evaluate_all(config, checkpoints, held_out, episodes, race.work / f"held_out_{states}_{episodes}")
    )

    def mean(side: Side, mode: str, sign: int = 1) -> list[tuple[float, Totals]]:
        return [(sign / race.seeds, totals[f"{side}_{seed}"][mode]) for seed in range(1, race.seeds + 1)]

    def reward(*terms: tuple[float, Totals]) -> Interval:
        return contrast(terms)["reward"]

    return {
        mode: Rise(
            ours=reward(*mean("ours", mode), (-1, before)),
            trl=reward(*mean("trl", mode), (-1, before)),
            difference=reward(*mean("ours", mode), *mean("trl", mode, -1)),
        )
        for mode, before in totals["before"].items()
    }


async def evaluate_all(
    config: Config, checkpoints: dict[str, str], states: StateSet, episodes: int, work: Path
) -> dict[str, dict[str, Totals]]:
    """Returns the figures of each checkpoint by sampling mode."""
    totals: dict[str, dict[str, Totals]] = {}
    async with Servers(Backends.of(config), work) as servers:
        for name, checkpoint in checkpoints.items():
            job = EvaluationJob(checkpoint, states, work / f"evaluation_{name}", episodes=episodes)
            await run_evaluate(config, job, servers)
            totals[name] = {mode: totals_of(config, job, mode) for mode in job.modes(config)}
    return totals


if __name__ == "__main__":
    command.run(main)
