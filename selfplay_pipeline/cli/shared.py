"""Parts that several commands share: places of results, keys, words of help, lines before and after the work."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.terminal.harmless import one_line

DATA = Path("data/matching_game_selfplay")
RUNS = Path("data/matching_game_selfplay_iterations")

PLAYING = ("model", "seed", "game.max_length", "engine.kind", "engine.device", "engine.server_url", "generate")
"""Keys that commands take which play for training."""
OTHERS = "a scripted player of the game (such as random or sharing; a wrong name lists them), "
OTHERS += "chat (a model behind an API), or another checkpoint"

MACHINES = ("train.device", "train.gpus_per_node", "train.nodes", "train.ray_address")
"""Keys that all commands take which train."""
TRAINING = (
    "train.method", "train.best_of_group", "train.epochs", "train.train_batch_size", "train.micro_batch_size",
    "train.learning_rate", "train.kl_coef",
    "train.lora_rank", "train.keep_zero_signal", "train.loggers", *MACHINES,
)  # fmt: skip
"""Keys that commands take which train on episodes that were played before."""
IMITATING = (
    "model", "seed", "imitate", "train.micro_batch_size", "train.lora_rank", "train.save_every", "train.loggers",
    *MACHINES,
)  # fmt: skip
"""Keys that `imitate` takes."""

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
"""Every command that writes has it. Its checks are those of the real run; `planned` ends it."""


def planned(*lines: str) -> NoReturn:
    """Say what would be done, and end the command."""
    from selfplay_pipeline.core.terminal.progress import say_announced

    say_announced()
    terminal.result("\n".join(map(one_line, lines)))
    terminal.flush()  # here a full disk can still be told in one line
    raise typer.Exit


def suggest(command: str, path: Path, options: Mapping[str, Any] = {}) -> None:
    """Print the command that usually comes next, as a line for a shell; it names games that the package lacks.

    Args:
        options: its options by their names in Python; a list is given once for each value, and None not at all.
    """
    from selfplay_pipeline.games.registry import own_games

    own = (word for name in own_games() for word in ("--game", name))
    words = [*own, command, f"./{path}" if str(path).startswith("-") else str(path)]
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{option}", str(one)]
    terminal.say(f"next: {program()} {shlex.join(words)}")


def warn(message: str | None) -> None:
    """Say what may be wrong, if anything."""
    if message is not None:
        terminal.say(f"selfplay: warning: {message}")
