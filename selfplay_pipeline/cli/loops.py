"""Commands that alternate playing and training: iterate, population, and online training with its game states."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.cli.options import load, taking
from selfplay_pipeline.cli.shared import (
    RUNS,
    DryRun,
    path_and_overrides,
    planned,
)
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.stopping import run
from selfplay_pipeline.core.terminal.harmless import one_line

app = typer.Typer()
ONLINE = Path("data/matching_game_online")
POPULATION = Path("data/matching_game_population")
MOST_MEMBERS = 100


@app.command(cls=taking("seed"))
def games(
    context: typer.Context,
    output: Annotated[Path, typer.Option(help="Folder for train.parquet and test.parquet.")] = ONLINE / "games",
    num_train: Annotated[int, typer.Option(min=1, max=LARGEST, help="Game states to train on.")] = 1000,
    num_test: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Game states to validate on, apart from those of `evaluate`.")
    ] = 100,
    per_seat: Annotated[
        bool,
        typer.Option("--per-seat", help="Write a row for each seat, trained on alone."),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Write game states for online training, without playing them.

    Each state is one row, and its episodes give training rows of all seats. With --per-seat, each seat of a state is
    one row, and its episodes give training rows of that seat only; the turns of the other seats are not trained on.
    """
    settings = load(context)
    from selfplay_pipeline.core.terminal.progress import say_announced
    from selfplay_pipeline.train.online_stage import online_games, plan_games

    if dry_run:
        planned(plan_games(settings, output, num_train, num_test))
    online_games(settings, output, num_train, num_test, per_seat=per_seat)
    say_announced()
    terminal.result(one_line(f"{output}: train.parquet, test.parquet"))


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
            help="Folder of states that `selfplay games` wrote [default: new states, written to OUTPUT/games]. After "
            "`--` verl's own keys, as Hydra overrides: -- KEY=VALUE …",
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


LOOP = taking(
    "model", "seed", "iterate.num_iterations", "iterate.partner", "generate.num_episodes",
    "generate.episodes_per_state", "train.epochs", "train.learning_rate",
)  # fmt: skip


@app.command(cls=LOOP)
def iterate(
    context: typer.Context,
    output: Annotated[Path, typer.Option(help="Run directory: iter_1/, iter_2/, …")] = RUNS,
    dry_run: DryRun = False,
) -> None:
    """Repeat: the policy plays itself, its episodes become data, verl trains it, and the new policy plays.

    With --partner, the policy holds the seat `iterate.seat` and the partner all other seats, in training and in
    evaluation. After an interruption, the same command continues at the interrupted stage.
    """
    settings = load(context)
    if dry_run:
        from selfplay_pipeline.iterate.loop import plan_iterate

        planned(*plan_iterate(settings, output))
    from selfplay_pipeline.core.terminal.progress import in_place
    from selfplay_pipeline.iterate.loop import run_iterate
    from selfplay_pipeline.iterate.table import live_table, show_run

    with in_place(lambda: live_table(output)):
        done = run(run_iterate(settings, output))
    show_run(done)


@app.command(cls=LOOP)
def population(
    context: typer.Context,
    members: Annotated[int, typer.Option(min=1, max=MOST_MEMBERS, help="Number of policies.")] = 3,
    output: Annotated[Path, typer.Option(help="Folder of the run directories member_1, member_2, …")] = POPULATION,
    dry_run: DryRun = False,
) -> None:
    """Train several policies with each other, round by round, with the same servers and trainer.

    Each member is a run like one of `iterate`, with a folder and a seed of its own. In iteration k it plays with itself
    and with the checkpoints that the others made in iteration k - 1, with equal shares, or with the shares of
    `iterate.partners`, where `members` stands for the others. After an interruption, the same command continues.
    """
    settings = load(context, command="iterate")
    from selfplay_pipeline.iterate.population import member_folders, plan_population, run_population

    if dry_run:
        planned(*plan_population(settings, output, members))
    from selfplay_pipeline.core.terminal.progress import in_place
    from selfplay_pipeline.iterate.table import live_tables, show_run

    with in_place(lambda: live_tables(member_folders(output, members))):
        done = run(run_population(settings, output, members))
    for one in done:
        show_run(one)
