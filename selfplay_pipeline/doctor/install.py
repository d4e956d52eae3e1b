"""Installs the locked packages of a machine or of a logger: `selfplay setup`, which `make setup` runs as well.

Only the standard library is imported, because none of the packages is there yet.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path

from selfplay_pipeline.core.errors import UserError

LISTS = Path(__file__).with_name("requirements")
"""Folder of the lists of locked packages, each complete on top of those before it."""
MACHINES = {"cpu": ["torch.txt", "cpu.txt"], "gpu": ["gpu.txt"]}
"""Lists of a machine; torch on a CPU comes first, with whatever its own build needs."""
LOGGERS = sorted({path.stem for path in LISTS.glob("*.txt")} - {"torch", *MACHINES})
WHAT = (*MACHINES, *LOGGERS)
RESOLVED = {"torch.txt"}
"""Lists whose dependencies pip resolves. The others are complete, since SGLang and verl pin different transformers."""


def install_commands(what: Sequence[str], python: str = sys.executable) -> list[list[str]]:
    """Returns the commands that install the lists of machines and loggers, with pip, or else with uv.

    Args:
        what: Names of `WHAT`.
        python: Interpreter of the environment.

    Raises:
        UserError: A name is unknown, or neither pip nor uv is there.
    """
    if unknown := [name for name in what if name not in WHAT]:
        raise UserError(f"setup: {unknown[0]!r} is nothing to install; name some of {', '.join(WHAT)}")
    if find_spec("pip"):
        install = [python, "-m", "pip", "install", "--quiet"]
    elif uv := shutil.which("uv"):
        install = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        raise UserError(f"setup: {python} has no pip, and there is no uv; run `{python} -m ensurepip`")
    lists = [name for one in what for name in MACHINES.get(one, [f"{one}.txt"])]
    return [
        [*install, *options, *_read(names)]
        for options, names in (
            ([], [name for name in lists if name in RESOLVED]),
            (["--no-deps"], [name for name in lists if name not in RESOLVED]),
        )
        if names
    ]


def install(commands: Iterable[Sequence[str]]) -> None:
    """Run the commands of `install_commands`.

    Raises:
        UserError: A command failed; its own output says why.
    """
    for command in commands:
        if code := subprocess.run(command).returncode:
            raise UserError(f"setup: `{shlex.join(command)}` ended with exit code {code}; its own lines say why")


def _read(names: Iterable[str]) -> list[str]:
    return [word for name in names for word in ("-r", str(LISTS / name))]


if __name__ == "__main__":
    try:
        install(install_commands(sys.argv[1:]))
    except UserError as error:
        sys.exit(str(error))
