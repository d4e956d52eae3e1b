"""The command line in this process, which is quicker; `test_cli.py` shows that a process of its own does the same."""

from dataclasses import dataclass

from typer.testing import CliRunner

from selfplay_pipeline.cli import app


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def selfplay(*arguments: str) -> Done:
    """What `selfplay ARGUMENTS` prints, and its exit code."""
    result = CliRunner().invoke(app, arguments, prog_name="selfplay")
    return Done(result.exit_code, result.stdout, result.stderr)
