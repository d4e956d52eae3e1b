"""What the benchmarks that are commands of their own share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.command_line import earlier_names
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.progress import shown


def run(main: Callable[..., None]) -> None:
    """Run it as a command line: one line for a mistake, and servers stopped however it ends."""
    stopping.interrupt()
    app = typer.Typer(add_completion=False, context_settings=earlier_names(out="output"))
    app.command()(main)
    try:
        with shown():
            app()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
