"""Command-line frame of the benchmarks that are commands of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.terminal.progress import shown


def run(main: Callable[..., None]) -> None:
    """Run `main` as a command line: mistakes give one line, and servers are stopped at any end."""
    stopping.interrupt()
    app = typer.Typer(add_completion=False)
    app.command()(main)
    try:
        with shown():
            app()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
