"""Parts that several commands share: default paths, configuration keys, help texts and printed lines."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from selfplay_pipeline.core import reporting, terminal
from selfplay_pipeline.core.command_line import program
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.harmless import one_line

DATA = Path("data/matching_game_selfplay")
RUNS = Path("data/matching_game_selfplay_iterations")

OTHERS = "a scripted player of the game (such as random or sharing; a wrong name lists them), "
OTHERS += "chat (a model behind an API), or another checkpoint"

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
"""Option of the long trainings and loops; a dry run makes the same checks and ends with `planned`."""


def file_path(text: str | Path) -> Path:
    """Returns the path of an output file; refuses a path that ends in a slash, because it names a folder."""
    if str(text).endswith("/"):
        raise UserError(f"{text}: a folder, not a file; give another --output")
    return Path(text)


def output_file(text: str) -> Any:
    """Returns the option --output of a command that writes a file.

    Args:
        text: Help of the option.
    """
    return typer.Option(parser=file_path, metavar="<path>", help=text)


def planned(*lines: str) -> NoReturn:
    """Print the description of the planned work, and end the command."""
    reporting.begin()
    terminal.result("\n".join(map(one_line, lines)))
    terminal.flush()  # a full disk can still be reported in one line here
    raise typer.Exit


def suggest(command: str, path: Path, options: Mapping[str, Any] = {}) -> None:
    """Print the command that usually follows, as a shell line, with --game for games outside the package.

    Args:
        command: Name of the command.
        path: Argument of the command.
        options: Options by their names in Python; a list repeats the option for each value, and None omits it.
    """
    from selfplay_pipeline.games.registry import own_games

    words = [*command.split(), f"./{path}" if str(path).startswith("-") else str(path)]
    words += as_words({"game": next(iter(own_games()), None), **options})
    terminal.say(f"next: {program()} {shlex.join(words)}")


def as_words(options: Mapping[str, Any]) -> list[str]:
    """Returns the words of a command line for options, as `suggest` takes them."""
    words = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif value is not None:
            for one in value if isinstance(value, list) else [value]:
                words += [f"--{option}", str(one)]
    return words


def given_besides(context: typer.Context, names: set[str], argument: str = "the player") -> list[str]:
    """Returns the arguments and options on the command line that are not among some names, as a user writes them.

    Args:
        context: Context of the command in typer.
        names: Names of parameters.
        argument: What to call an argument.
    """
    found = (
        param
        for param in context.command.get_params(context)
        if param.name not in names and "COMMANDLINE" in str(context.get_parameter_source(str(param.name)))
    )
    return [param.opts[0] if param.opts[0].startswith("-") else argument for param in found]


def warn(message: str | None) -> None:
    """Print a warning unless the message is None."""
    if message is not None:
        terminal.say(f"selfplay: warning: {message}")


def path_and_overrides(
    command: str, arguments: list[str] | None, option: str, given: Path | None
) -> tuple[Path | None, list[str]]:
    """Returns the path and verl's keys.

    Args:
        command: Name of the command.
        arguments: Arguments of the command line.
        option: Option that takes the same path.
        given: Value of the option.

    Raises:
        UserError: Several paths are given.
    """
    overrides = [
        argument
        for argument in arguments or ()
        if ("=" in argument or argument.startswith("~")) and not Path(argument).exists()
    ]
    paths = [argument for argument in arguments or () if argument not in overrides]
    if len(paths) > 1:
        raise UserError(f"{command}: takes one path, but {' and '.join(paths)} are given; verl's keys are KEY=VALUE")
    if paths and given is not None:
        raise UserError(f"{command}: give {paths[0]} or {option} {given}, not both")
    return (Path(paths[0]) if paths else given), overrides
