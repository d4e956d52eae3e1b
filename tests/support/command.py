"""The command line in this process, which is quicker; `test_cli.py` shows that a process of its own does the same."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from selfplay_pipeline.cli import app

SUPPORT = Path(__file__).parent
"""The folder of the data and modules that tests share."""


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def selfplay(*arguments: str) -> Done:
    """What `selfplay ARGUMENTS` prints, and its exit code."""
    result = CliRunner().invoke(app, arguments, prog_name="selfplay")
    return Done(result.exit_code, result.stdout, result.stderr)


def next_words(done: Done) -> list[str]:
    """The next command that a command has printed, as the words that a shell makes of it."""
    assert done.returncode == 0, done.stderr
    (line,) = re.findall(r"^next: selfplay (.+)$", done.stderr, re.MULTILINE)
    return shlex.split(line)
