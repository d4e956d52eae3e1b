"""State and helpers that all command lines share."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

LARGEST = 2**31 - 1
"""Largest number on the command line and in a configuration. No key needs a larger one, and libraries accept no larger
seed."""
announced: list[str] = []
"""Lines that a command prints once its work begins; a command that is refused earlier prints only the reason."""

options: dict[str, str] = {}
"""Options of the running command, by the configuration key or the parameter of the command that each sets."""


def program() -> str:
    """Returns the shell command for this program: `selfplay` if that is on the PATH, else its path."""
    script = Path(sys.executable).with_name("selfplay")
    found = shutil.which("selfplay")
    if not script.exists() or (found is not None and script.samefile(found)):
        return "selfplay"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
