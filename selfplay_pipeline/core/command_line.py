"""Limits and names that all command lines share."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

LARGEST = 2**31 - 1
"""Largest number on the command line and in a configuration. No key needs a larger one, and libraries accept no larger
seed."""


def program() -> str:
    """Returns the shell command for this program: `selfplay` if that is on the PATH, else its path."""
    script = Path(sys.executable).with_name("selfplay")
    found = shutil.which("selfplay")
    if not script.exists() or (found is not None and script.samefile(found)):
        return "selfplay"
    here = Path.cwd()
    return shlex.quote(str(script.relative_to(here) if script.is_relative_to(here) else script))
