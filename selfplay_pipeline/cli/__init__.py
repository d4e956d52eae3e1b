"""Command line: parses options, builds the configuration, calls a stage and shows the result.

Each file holds one group of commands. Folders that are whole (`WHOLE`) bring their commands along.
"""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Annotated, Any

import typer

from selfplay_pipeline import __version__
from selfplay_pipeline.cli import benchmark, doctor, games, generate, look, loops, measure, models, stages
from selfplay_pipeline.cli.failures import Commands, check_directory
from selfplay_pipeline.core import stopping, terminal
from selfplay_pipeline.core.command_line import program

GROUPS = {
    "The loop": ("iterate", "train-online"),
    "Its stages": ("generate", "convert", "train", "imitate"),
    "Measure": ("evaluate", "crossplay", "listen", "benchmark"),
    "Look": ("report", "show", "export"),
    "Games": ("play", "game", "slime"),
    "Machine": ("doctor", "setup", "config", "model"),
}
"""All commands, by their heading in `selfplay --help`."""
WHOLE = [
    "people",
    "slime",
]
"""Folders that are deleted with their line here; each has all code of a subject, and the commands in `commands.py`."""
LONGEST = 150
"""Most characters of a command's help in the list; longer ones are cut."""


class Program(Commands):
    """The command `selfplay`; its help lists the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of each group."""
        for title, names in GROUPS.items():
            with formatter.section(title):
                shown = ((name, self.commands[name]) for name in names if name in self.commands)
                formatter.write_dl([(name, command.get_short_help_str(LONGEST)) for name, command in shown])


app = typer.Typer(
    name="selfplay",
    cls=Program,
    help="Teach a language model to cooperate in dialogue by playing against itself.\n\n"
    "One model, the policy, holds every seat of a cooperative dialogue game. SGLang plays episodes, verl trains on\n"
    "them, and the new checkpoint plays again.\n\n"
    "Every command that plays or trains takes --config FILE and --set KEY=VALUE; `selfplay config` prints all keys\n"
    "with their values.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for group in (doctor, generate, stages, loops, measure, benchmark, look):
    app.add_typer(group.app)
app.add_typer(games.app, name="game")
app.add_typer(models.app, name="model")
for folder in WHOLE:
    app.add_typer(import_module(f"selfplay_pipeline.{folder}.commands").app)


def _show_version(asked: bool) -> None:
    if asked:
        terminal.result(f"selfplay-pipeline {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    """Options before the name of a command."""


def main() -> None:
    """Run the command `selfplay`."""
    from selfplay_pipeline.core.processes import own_temporary_files

    stopping.interrupt()
    terminal.guard()
    check_directory()
    stopped = False
    try:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # for example, on a full disk: the command itself reports the failure
                stack.enter_context(own_temporary_files())
            app(prog_name=program())
    except SystemExit as ended:
        stopped = ended.code == stopping.STOPPED_CODE
        raise
    except KeyboardInterrupt:  # before the command began, or after it ended
        stopped = True
    finally:
        stopped = stopped or stopping.stop.asked is not None  # whatever became of the exception
        if stopped:
            terminal.say(f"selfplay: {stopping.STOPPED}")
        terminal.finish()
        stopping.over(stopped=stopped)
