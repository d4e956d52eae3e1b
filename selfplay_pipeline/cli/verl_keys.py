"""Arguments of training commands: at most one path, and keys of verl."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.core.errors import UserError


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
