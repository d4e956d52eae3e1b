"""The command `selfplay generate`, which plays episodes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from selfplay_pipeline.cli.failures import fail_if_lost
from selfplay_pipeline.command_parts.options import chosen_game, load, shared_with, taking
from selfplay_pipeline.command_parts.shared import DATA, OTHERS, as_words, output_file, suggest
from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import LARGEST, program
from selfplay_pipeline.core.stopping import run

if TYPE_CHECKING:
    from selfplay_pipeline.config.schema import Config

app = typer.Typer()


@app.command(
    cls=taking(
        "model", "seed", "engine.kind", "engine.server_url", "generate.num_episodes", "generate.episodes_per_state",
        "generate.temperature",
    )
)  # fmt: skip
def generate(
    context: typer.Context,
    player: Annotated[
        list[str] | None,
        typer.Option(help=f"Who holds the seats: policy, {OTHERS}. One name holds all, or give one for each seat."),
    ] = None,
    first_state: Annotated[int, typer.Option(min=0, max=LARGEST, help="Number of the first game state.")] = 0,
    output: Annotated[Path, output_file("JSONL file; one episode a line.")] = DATA / "selfplay_games.jsonl",
) -> None:
    """Play episodes of the policy with itself, or of the named players, and write them to JSONL.

    Only seats of the policy record trajectories, from which `convert` makes training rows.
    After an interruption, the same command continues.
    """
    settings = load(context)
    from selfplay_pipeline.cli.show.generate import show_summary
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.generate.seats import seats_for
    from selfplay_pipeline.generate.stage import generate_episodes

    seats = seats_for(make_game(settings.game), player or ())
    summary = run(generate_episodes(settings, output, first_state=first_state, seats=seats))
    show_summary(summary, output)
    fail_if_lost(summary.failures)
    if "policy" in seats and not summary.result().agreement_rate:
        _suggest_warm_start(output, context, settings)
        return
    command = "convert" if "policy" in seats else "show"
    suggest(command, output, shared_with(context, command))


def _suggest_warm_start(output: Path, context: typer.Context, settings: Config) -> None:
    """Print why the model reached no agreement and thus has no training signal, and the commands of a warm start.

    The commands are left out if the limit of turns ended all episodes.
    """
    from selfplay_pipeline.games.registry import make_game
    from selfplay_pipeline.generate.read_records import read_episodes
    from selfplay_pipeline.generate.summary import WARM_START, why_unsuccessful

    why = why_unsuccessful(read_episodes(output), settings.generate.max_new_tokens) or f"the model {WARM_START}"
    why = f"no episode ended in agreement, so that there is nothing to compare: {why}"
    if not why.endswith(WARM_START):
        terminal.say(why)
        return
    taught, game = output.with_name("teacher.jsonl"), chosen_game(context)
    players = make_game(settings.game).players
    player = next(iter(players), "teacher") if "teacher" not in players else "teacher"
    words = ["--player", player, "--num-episodes", "2000", "--episodes-per-state", "1", "--output", str(taught)]
    command = shlex.join(["generate", *words, *as_words(game)])
    terminal.say(f"{why}, on episodes such as `{program()} {command}` plays")
    suggest("imitate", taught, game | shared_with(context, "imitate"))
