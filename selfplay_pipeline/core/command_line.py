"""What all command lines share: how to call the program again, what is said at the start."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

LARGEST = 2**31 - 1
"""Largest number that the command line takes, as the configuration does."""
announced: list[str] = []
"""Lines that a command says as soon as something begins; a command that is refused before says nothing but why."""

options: dict[str, str] = {}
"""The options that the running command takes, by what they give: keys of the configuration, or its own parameters."""


def program() -> str:
    """Returns the shell command for this program: `selfplay` where that is on the PATH, else its path."""
    script = Path(sys.executable).with_name("selfplay")
    found = shutil.which("selfplay")
    if not script.exists() or (found is not None and script.samefile(found)):
        return "selfplay"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
