"""A working directory full of files that are named like modules and must not run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from pkgutil import iter_modules

RUN = "ran.txt"
"""Gets a line from each of the files that runs."""


def fill(folder: Path, spare: Iterable[str] = ()) -> None:
    """Write a file for each module of the standard library and of all installed packages.

    Args:
        spare: names of modules that get no file.
    """
    marker = folder / RUN
    write = "import sys\nwith open({!r}, 'a') as marker:\n    print({!r}, 'in', *sys.argv, file=marker)\n"
    names = {*sys.stdlib_module_names, *(module.name for module in iter_modules())}
    for name in names - {"selfplay_pipeline", *spare}:
        (folder / f"{name}.py").write_text(write.format(str(marker), name))


def imported_by_runpy() -> list[str]:
    """The modules that `python -m` imports before any code of the program runs."""
    return subprocess.check_output(
        [sys.executable, "-I", "-c", "import runpy, sys; print(*sys.modules)"], text=True
    ).split()


def ran(folder: Path) -> str:
    """The files that ran, and in which processes."""
    marker = folder / RUN
    return marker.read_text() if marker.exists() else ""
