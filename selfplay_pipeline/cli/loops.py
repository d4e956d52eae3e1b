"""Commands that alternate playing and training: iterate and train-online."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.command_parts.options import chosen_game, load, shared_with, taking
from selfplay_pipeline.command_parts.shared import (
    RUNS,
    DryRun,
    path_and_overrides,
    planned,
    suggest,
)
from selfplay_pipeline.core.stopping import run

if TYPE_CHECKING:
    from selfplay_pipeline.config.schema import Config
    from selfplay_pipeline.iterate.folder import RunDirectory

app = typer.Typer()
ONLINE = Path("data/matching_game_online")
POPULATION = Path("data/matching_game_population")
MOST_MEMBERS = 100


@app.command(
    name="train-online",
    cls=taking(
        "model", "seed", "online.steps", "online.states_per_step", "generate.episodes_per_state",
        "generate.temperature", "train.learning_rate", "train.lora_rank",
    ),
)  # fmt: skip
def train_online(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="states",
            help="Folder of states that `selfplay game states` wrote [default: new states, written to OUTPUT/games]. "
            "After `--` verl's own keys, as Hydra overrides: -- KEY=VALUE …",
            show_default=False,
        ),
    ] = None,
    games: Annotated[Path | None, typer.Option(help="The same as the argument.")] = None,
    output: Annotated[Path, typer.Option(help="Gets checkpoint/, trainer_state/, metrics.jsonl.")] = ONLINE
    / "training",
    dry_run: DryRun = False,
) -> None:
    """Train while playing: verl plays the policy against itself in every step, with its newest weights.

    Monitor states are played before the first step and after the last. They are not trained on, and differ from the
    states of `selfplay evaluate`, which stay held out. Groups in which all rewards are equal are left out of an update.
    After an interruption, the same command continues at the last saved step.
    """
    games, overrides = path_and_overrides("train-online", arguments, "--games", games)
    settings = load(context, {"train.overrides": overrides or None})
    from selfplay_pipeline.cli.show.training import show_online
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.train.online_stage import plan_online
    from selfplay_pipeline.train.online_stage import train_online as train

    if dry_run:
        planned(plan_online(settings, output, games))
    show_online(run(train(settings, output, games)), make_game(settings.game))


@app.command(
    cls=taking(
        "model", "seed", "iterate.num_iterations", "iterate.partner", "generate.num_episodes",
        "generate.episodes_per_state", "train.epochs", "train.learning_rate",
    )
)  # fmt: skip
def iterate(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(help=f"Run directory: iter_1/, iter_2/, … [default: {RUNS}; with --members {POPULATION}]."),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_MEMBERS, help="Number of policies to train with each other, as runs member_1/, member_2/, …"
        ),
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Repeat: the policy plays itself, its episodes become data, verl trains it, and the new policy plays.

    With --partner, the policy holds the seat `iterate.seat` and the partner all other seats, in training and in
    evaluation. After an interruption, the same command continues at the interrupted stage.

    With --members, several policies are trained round by round, with the same servers and trainer. In iteration k each
    one plays with itself and with the checkpoints that the others made in iteration k - 1, with equal shares, or with
    the shares of `iterate.partners`, where `members` stands for the others. Each has a folder and a seed of its own.
    """
    settings = load(context)
    if members is not None:
        _train_population(context, settings, output or POPULATION, members, dry=dry_run)
        return
    output = output or RUNS
    if dry_run:
        from selfplay_pipeline.iterate.preflight import plan_iterate

        planned(*plan_iterate(settings, output))
    from selfplay_pipeline.core.terminal.progress import in_place
    from selfplay_pipeline.iterate.loop import run_iterate
    from selfplay_pipeline.iterate.table import live_table

    with in_place(lambda: live_table(output)):
        done = run(run_iterate(settings, output))
    _show_end(context, settings, [done])


def _train_population(context: typer.Context, settings: Config, output: Path, members: int, *, dry: bool) -> None:
    """Train several policies with each other, round by round."""
    from selfplay_pipeline.iterate.population import member_folders, plan_population, run_population

    if dry:
        planned(*plan_population(settings, output, members))
    from selfplay_pipeline.core.terminal.progress import in_place
    from selfplay_pipeline.iterate.table import live_tables

    with in_place(lambda: live_tables(member_folders(output, members))):
        done = run(run_population(settings, output, members))
    _show_end(context, settings, done)


def _show_end(context: typer.Context, settings: Config, runs: Sequence[RunDirectory]) -> None:
    """Print the end of each run, and the command that measures its best checkpoint with the same partner."""
    from selfplay_pipeline.cli.show.iterate import show_run
    from selfplay_pipeline.config.schema import SELF

    options = chosen_game(context, str(settings.model)) | shared_with(context, "evaluate")
    if settings.iterate.partner != SELF:
        options |= {"partner": settings.iterate.partner, "seat": settings.iterate.seat}
    for one in runs:
        suggest("evaluate", show_run(one), options)
