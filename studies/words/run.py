"""Does the default run without a GPU teach to read number words? Self-play and two controls; see README.md.

The controls hear no messages (`muted`), or train on rewards that are permuted within groups (`placebo`). The muted
control first imitates play without words: after a muted message the warm start plays illegally. Finished trainings are
not repeated.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.run import EvaluationJob, run_evaluate
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.run import NoTurnsError
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.history import history_of
from selfplay_pipeline.iterate.loop import run_iterate
from studies.common.arms import TAUGHT, teach_silence
from studies.common.exam import examine

CONFIG, SELF, MUTED = "tiny_honest", "self", "muted"
ARMS: dict[str, dict[str, Any]] = {SELF: {}, MUTED: {"game.mute": True}, "placebo": {"convert.placebo": True}}
"""Configuration keys in which each training differs from the default run; controls are evaluated at the end only."""
KEPT = ("held_out_reward", "held_out_greedy_reward", "held_out_illegal", "held_out_rises", "wordless")
"""Figures of an evaluation that are kept, by their names in `metrics.jsonl`."""


def main(
    arm: Annotated[list[str], typer.Option(help=f"Arms to train, of {', '.join(ARMS)}.")] = [*ARMS],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds, one after the other.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first: settings were chosen with 1 to 3.")] = 4,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 5,
    states: Annotated[int, typer.Option(min=1, help="New states of the exams.")] = 2_000,
    work: Annotated[Path, typer.Option(help="Gets the run folders.")] = Path("data/words"),
    output: Annotated[Path | None, typer.Option(help="Gets results.json; by default --work.")] = None,
) -> None:
    """Train arms with each seed, examine the warm start and self-play's last checkpoints, and add to results.json.

    The warm start and these checkpoints also play with swapped messages.

    A training that finds no legal play any more is left out, and named.
    """
    if unknown := {*arm} - ARMS.keys():
        raise UserError(f"--arm {min(unknown)}: give one of {', '.join(ARMS)}")
    found: dict[str, dict[str, Any]] = {"trainings": {}, "exams": {}, "swapped": {}}
    models = {"before": str(load_config(CONFIG, {}).model)}
    for seed in range(first_seed, first_seed + seeds):
        for name in arm:
            say(f"{name}, seed {seed}")
            given = ARMS[name] | ({} if name == SELF else {"iterate.evaluate_every": iterations})
            if name == MUTED:
                given["model"] = teach_silence(load_config(CONFIG, ARMS[MUTED] | TAUGHT), work / "teaching")
            config = load_config(CONFIG, given | {"seed": seed, "iterate.num_iterations": iterations})
            try:
                run = stopping.run(run_iterate(config, work / f"{name}_{seed}"))
            except NoTurnsError as error:
                say(f"{name}, seed {seed}, is left out: {error}")
                found["trainings"][f"{name}_{seed}"] = {}
                continue
            found["trainings"][f"{name}_{seed}"] = _curve(run)
            if name == SELF:
                models[f"after_{seed}"] = run.checkpoint(iterations)
                for when, model in (("before", models["before"]), ("after", models[f"after_{seed}"])):
                    name_of = f"{when}_{seed}"
                    found["swapped"][name_of] = _swapped(config, model, seed, work / f"swapped_{name_of}")
    if SELF in arm:
        rewards = examine([*models.values()], CONFIG, in_words=True, states=states)
        found["exams"] |= {name: rewards[model] for name, model in models.items()}
    file = (output or work) / "results.json"
    before = json.loads(file.read_text()) if file.exists() else {}
    found = {name: before.get(name, {}) | of for name, of in found.items()}
    write_text(file, json.dumps(found | {"iterations": iterations, "states_of_exams": states}, indent=1) + "\n")


def _swapped(config: Config, checkpoint: str, seed: int, folder: Path) -> dict[str, Any]:
    """Returns, by mode, the reward of a checkpoint on new states, its distance to silence, and the worth of words.

    The last is compared with play in which each message comes from another state.
    """
    states = held_out_states(make_game(config.game), config.evaluate.monitor_states, seed)
    job = EvaluationJob(checkpoint, states, folder, episodes=1, swaps=("swapped",), silence=True)
    modes = stopping.run(run_evaluate(config, job)).model_dump(mode="json")["modes"]
    return {
        mode: {"reward": of["figures"]["reward"], "above_silence": of["above_silence"], **of["words"]}
        for mode, of in modes.items()
    }


def _curve(run: RunDirectory) -> dict[int, dict[str, Any]]:
    """Returns the held-out figures of a run by iteration."""
    lines = {one.number: one.evaluated.to_line() for one in history_of(run.state) if one.evaluated}
    return {number: {name: line[name] for name in KEPT if name in line} for number, line in lines.items()}


if __name__ == "__main__":
    command.run(main)
