"""Command that makes a line of the leaderboard, or a table of lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from selfplay_pipeline.cli.failures import fail_if_lost
from selfplay_pipeline.command_parts.options import LABELS, load, taking
from selfplay_pipeline.command_parts.shared import given_besides
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.core.stopping import run
from selfplay_pipeline.core.terminal.harmless import one_line

app = typer.Typer()


# The suite has games of its own, which --games chooses.
@app.command(cls=taking("device", "engine.kind", "engine.server_url", "partner.max_dollars", game=False))
def benchmark(
    context: typer.Context,
    player: Annotated[
        list[str],
        typer.Argument(
            metavar="PLAYER",
            help="A checkpoint, a scripted player, or chat (a model behind an API; --config names it). With --table: "
            "files of lines, or folders of benchmarks.",
            show_default=False,
        ),
    ],
    games: Annotated[list[str] | None, typer.Option(help="Play only this game or task; repeat it for more.")] = None,
    states_per_task: Annotated[
        int | None,
        typer.Option(
            min=2, max=LARGEST, metavar="N", help="Play only the first N states of each task; the line is then partial."
        ),
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Print lines as a table in Markdown; play nothing.")] = False,
    output: Annotated[
        Path | None, typer.Option(help="Folder for episodes and benchmark.json [default: data/benchmarks/…].")
    ] = None,
) -> None:
    """Play a fixed, published set of states of every game, and write one line of a leaderboard.

    The player holds all seats: a checkpoint greedily, chat at its own temperature. The line has reward, agreement,
    turns, words, tokens and cost with 95 % intervals, and beside them the reward of play without words (silence) and
    that of people. After an interruption, or with a higher --budget, the same command continues.
    """
    from selfplay_pipeline.config.load import configuration_of
    from selfplay_pipeline.config.schema import SELF
    from selfplay_pipeline.evaluate.benchmark import (
        LINE_FILE,
        BenchmarkJob,
        read_lines_of,
        run_benchmark,
        table_of,
    )
    from selfplay_pipeline.evaluate.run import default_folder

    if table:
        if others := given_besides(context, {"player", "table"}):
            raise UserError(f"--table: only prints lines (> FILE keeps them); leave out {', '.join(others)}")
        terminal.result(table_of(read_lines_of([*map(Path, player)])))
        return
    if len(player) > 1:
        raise UserError(f"benchmark: plays one player, but {len(player)} are given; --table compares their lines")
    settings = load(context, {"model": player[0] if configuration_of(player[0]) else None})
    # A changed number of states is stored under the key, and not under the name of the parameter.
    context.meta[LABELS]["num_states"] = "--states-per-task"
    name = shipped(player[0])
    folder = output or Path("data/benchmarks") / default_folder(player[0], SELF, None, settings).name
    job = BenchmarkJob(name, folder, games or (), states_per_task)
    line = run(run_benchmark(settings, job))
    terminal.result(f"{table_of([line])}\n\n{one_line(f'written to {folder / LINE_FILE}')}")
    fail_if_lost(line.lost)
