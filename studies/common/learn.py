"""Tests whether the policy learns to cooperate by talking: self-play and its controls, several seeds, and a verdict.

The controls are the same training with messages muted, and the same with rewards permuted within groups; `--arm noise`
adds one whose reward is noise. The muted arm first imitates play without words, unless the warm start met it.
`studies.common.verdict` has the rule. The command runs in parts and resumes: a few arms and seeds may be given at a
time, and all finished parts in the folder are compared after the last seed.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.evaluate.states import StateSet, references
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.iterate.folder import describe
from studies.common.arms import ARMS, MUTED, PLACEBO, SELF_PLAY, Played, Study
from studies.common.compared import Results, compare, evidence, rewards_of
from studies.common.pictures import show
from studies.common.planner import model_at
from studies.common.verdict import conditions, verdict

DEFAULT = [SELF_PLAY, MUTED, PLACEBO]


def main(
    arms: Annotated[list[str], typer.Option("--arm", help=f"Trainings: {', '.join(ARMS)}; repeat.")] = DEFAULT,
    seeds: Annotated[int, typer.Option(min=1, help="Training seeds, one after the other.")] = 5,
    first_seed: Annotated[int, typer.Option(min=1, help="The first: another than settings were chosen with.")] = 2,
    iterations: Annotated[int, typer.Option(min=1, help="Of each training.")] = 25,
    config: Annotated[str, typer.Option(help="YAML file or built-in name.")] = "studies/planner/4x4.yaml",
    model: Annotated[
        str | None, typer.Option(help="Warm start in place of the configuration's; {seed} in it stands for the seed.")
    ] = None,
    states: Annotated[int, typer.Option(min=2, help="Held-out states of each seed.")] = 500,
    episodes: Annotated[int, typer.Option(min=1, help="Sampled episodes of each state.")] = 1,
    met_silence: Annotated[
        bool, typer.Option("--met-silence", help="The warm start met muted play; the muted arm imitates nothing.")
    ] = False,
    silent: Annotated[
        str | None,
        typer.Option(help="The scripted player that plays the silence line; rewards are compared on the same states."),
    ] = None,
    work: Annotated[Path, typer.Option(help="Gets runs and episodes; for other iterations give another.")] = Path(
        "data/learn"
    ),
    output: Annotated[
        Path | None, typer.Option(help="Gets results.json, table.md and pictures; by default `results` in --work.")
    ] = None,
) -> None:
    """Train self-play and its controls from one warm start, and say whether the policy learned to cooperate by talking.

    Earlier trainings in the same folder are compared too. The exit status is 0 for every verdict.
    """
    for arm in arms:
        if arm not in ARMS:
            raise UserError(f"--arm: there is no arm {arm!r}; choose from {', '.join(ARMS)}")
    if silent and silent not in (players := make_game(load_config(config, {}).game).players):
        raise UserError(f"--silent: there is no scripted player {silent!r}; choose from {', '.join(sorted(players))}")
    study = Study(config, model, iterations, states, episodes, work, met_silence, silent)
    chosen = range(first_seed, first_seed + seeds)
    for warm_start in {str(study.config(seed).model) for seed in chosen}:
        model_at(warm_start)
    for seed in chosen:
        for arm in arms:
            say(f"{arm}, seed {seed} of {', '.join(map(str, chosen))}: {ARMS[arm].about}")
            study.train(arm, seed)
        asyncio.run(study.evaluate(seed, arms))
    output = output or work / "results"
    _write(study, chosen, output)
    print((output / "table.md").read_text())


def _write(study: Study, seeds: Sequence[int], output: Path) -> None:
    """Compare the finished parts, and write tables, plot and verdict."""
    config = study.config(seeds[0])
    outcomes = study.outcomes(seeds)
    players = compare(outcomes, study.heard(seeds), silent=study.silent)
    silent = rewards_of(outcomes, Played(study.silent, False)) if study.silent else {}
    states = tuple(state for seed in seeds for state in study.held_out(seed).states)
    lines = references(make_game(config.game), StateSet("of all seeds", states))
    found = conditions(evidence(players, lines.get("silence"), getattr(config.game, "protocol", "free"), silent))
    trained = {arm: players[arm].seeds for arm in ARMS if arm in players}
    results = Results(
        command=shlex.join(["python", "-m", "studies.common.learn", *sys.argv[1:]]),
        revision=describe({})["git_revision"],
        config=config.model_dump(mode="json", exclude={"engine", "seed"}),
        iterations=study.iterations,
        states_of_each_seed=study.states,
        episodes_of_each_state=study.episodes,
        references=lines,
        players=players,
        effort={arm: {seed: study.effort(arm, seed) for seed in of} for arm, of in trained.items()},
        curves={arm: {seed: study.curve(arm, seed) for seed in of} for arm, of in trained.items()},
        conditions=found,
        verdict=verdict(found),
    )
    write_text(output / "results.json", results.model_dump_json(indent=1) + "\n")
    show(results, output)


if __name__ == "__main__":
    command.run(main)
