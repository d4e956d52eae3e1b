"""What the benchmarks that are commands of their own share."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError


def run(main: Callable[..., None]) -> None:
    """Run it as a command line: one line for a mistake, and servers stopped however it ends."""
    stopping.interrupt()
    app = typer.Typer(add_completion=False)
    app.command()(main)
    try:
        app()
    except UserError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(2)
