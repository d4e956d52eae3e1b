"""Commands of `selfplay game`: write and test a game of your own, and write what a game gives without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.command_parts.options import OfGames, given, load, taking
from selfplay_pipeline.command_parts.shared import DATA, output_file, suggest
from selfplay_pipeline.core import reporting, terminal
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import announce
from selfplay_pipeline.core.terminal.harmless import one_line

app = typer.Typer(
    help="Write and test a game of your own; write a game's states, human episodes and reference lines.",
    no_args_is_help=True,
)
STATES = Path("data/matching_game_online/games")
STORED = Path("data/silence.json")


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the game: lower-case letters, digits and _.")],
    output: Annotated[Path, typer.Option(help="Folder for NAME.py and test_NAME.py.")] = Path(),
) -> None:
    """Write a game of your own in one file, and its test: two players agree on the sum of their numbers.

    The game can be played at once; change it step by step, and let `game check` test it.
    """
    from selfplay_pipeline.doctor.new_game import new_game

    game, test = new_game(name, output)
    terminal.result(one_line(f"{game}, {test}"))
    suggest("game check", game)


@app.command()
def check(
    game: Annotated[str, typer.Argument(metavar="GAME", help="A game: its name, FILE.py, or FILE.py:NAME.")],
    config: Annotated[
        str | None, typer.Option(help="Configuration of the game, a file or a built-in [default: the game's defaults].")
    ] = None,
    num_states: Annotated[int, typer.Option(min=2, max=10_000, help="Number of random states to play.")] = 20,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST, help="Seed of states and players.")] = 0,
) -> None:
    """Play random episodes of a game and check what playing, training and reports rely on.

    Each line is one check: ok, FAILED with the first state and turn where it fails, or not checked with the reason.
    The exit code is 2 if a check fails. One configuration is checked, which the first line describes; the game's code
    is run.
    """
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.doctor.game_check import check_game
    from selfplay_pipeline.games.registry import find, make_game, split

    if config is None:
        kind = find(game)
        checked = kind(kind.settings.model_validate({"name": kind.name} | split(game)[1]))
    else:
        checked = make_game(load_config(config, {"game": game}, announce).game)
    terminal.result(one_line(f"{checked.describe()} ({config or 'default configuration'})"))
    failed = 0
    for finding in check_game(checked, num_states, seed):
        failed += finding.passed is False
        mark = {True: "ok", False: "FAILED", None: "?"}[finding.passed]
        terminal.result(one_line(f"{mark:<7} {finding.check:<28} {finding.said}"))
    if failed:
        raise UserError(f"game check: {game}: {failed} {'check fails' if failed == 1 else 'checks fail'}")


@app.command(cls=taking("seed"))
def states(
    context: typer.Context,
    output: Annotated[Path, typer.Option(help="Folder for train.parquet and test.parquet.")] = STATES,
    num_train: Annotated[int, typer.Option(min=1, max=LARGEST, help="Game states to train on.")] = 1000,
    num_test: Annotated[
        int, typer.Option(min=1, max=LARGEST, help="Game states to validate on, apart from those of `evaluate`.")
    ] = 100,
    per_seat: Annotated[
        bool,
        typer.Option("--per-seat", help="Write a row for each seat, trained on alone."),
    ] = False,
) -> None:
    """Write game states for online training, without playing them.

    Each state is one row, and its episodes give training rows of all seats. With --per-seat, each seat of a state is
    one row, and its episodes give training rows of that seat only; the turns of the other seats are not trained on.
    """
    settings = load(context)
    from selfplay_pipeline.train.online_stage import online_games

    online_games(settings, output, num_train, num_test, per_seat=per_seat)
    reporting.begin()
    terminal.result(one_line(f"{output}: train.parquet, test.parquet"))


@app.command(cls=OfGames)
def humans(
    context: typer.Context,
    output: Annotated[Path, output_file("JSONL file; one episode a line.")] = DATA / "human_games.jsonl",
    config: Annotated[
        str, typer.Option(help="YAML file, or name of a built-in configuration, whose game people played.")
    ] = "default",
) -> None:
    """Write the human episodes that come with a game, for `imitate`: the legal actions of all seats.

    Skipped actions and episodes are counted by reason.
    """
    from selfplay_pipeline.config.load import load_config
    from selfplay_pipeline.core.folders import check_file
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.generate.human_episodes import write_people

    check_file(output, "game humans")
    game = make_game(load_config(config, {"game": given(context, "game")}, announce).game)
    people = write_people(game, output).to_text()
    terminal.result(one_line(f"{output}: ") + people)
    suggest("show", output)


@app.command(cls=taking("seed"))
def silence(
    context: typer.Context,
    num_states: Annotated[int, typer.Option(min=2, max=LARGEST, help="Number of game states to sample.")] = 500,
    output: Annotated[Path, output_file("File of lines, to which this one is added.")] = STORED,
) -> None:
    """Compute the lines of play without words: silence, pass and counter.

    silence: a fixed proposer who hears nothing makes one proposal, which is accepted. pass: the first player proposes
    only if its best proposal promises enough, else the second proposes. counter: the second player answers the first
    one's proposal with a better one. They are computed once per configuration; tables and charts of rewards then show
    them. Lines from more states replace earlier ones. Built-in configurations come with their lines. Large filtered
    states take seconds each.
    """
    settings = load(context)
    from selfplay_pipeline.core.folders import check_file
    from selfplay_pipeline.evaluate.silence import check_lines, compute_lines, store_lines
    from selfplay_pipeline.games.registry import make_game

    game = make_game(settings.game)
    check_file(output, "game silence")
    check_lines(output, game, num_states)  # before the lines are computed, which is slow
    lines = compute_lines(game, num_states, settings.seed)
    store_lines(output, game, lines)
    terminal.result(one_line(f"{', '.join(f'{name} {line}' for name, line in lines.items())}, written to {output}"))
