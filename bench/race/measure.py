"""What a command takes: its time, and the memory of all its processes."""

from __future__ import annotations

import ctypes
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.processes import PR_SET_PDEATHSIG, environment, last_lines

SECONDS_BETWEEN_LOOKS = 1.0
"""At least."""
LOOKING = 0.02
"""Share of the time that looking at the memory may take: the kernel counts the pages of dozens of processes anew."""


@dataclass(frozen=True)
class Taken:
    """Seconds of the command, its largest memory in bytes, and the seconds that looking at its memory took."""

    seconds: float
    peak: int
    looking: float


def measured(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Taken:
    """Run a command to its end. It must end its own processes when it is told to end.

    Args:
        log: gets what it prints.
        env: variables beside this process's own.

    Raises:
        UserError: it failed.
    """
    peak, look, looking, began = 0, 0.0, 0.0, time.monotonic()
    process = _started(command, log, env)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(max(SECONDS_BETWEEN_LOOKS, look / LOOKING))
                break
            looked = time.monotonic()
            peak = max(peak, tree_memory(process.pid))
            look = time.monotonic() - looked
            looking += look
        seconds = time.monotonic() - began
    finally:
        process.terminate()  # unless it has ended
        process.wait()
    if code:
        raise UserError(f"{' '.join(command)} ended with exit code {code}; the end of {log}:\n{last_lines(log, 15)}")
    return Taken(seconds, peak, looking)


def _started(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process that is told to end when this one is killed.

    Not under a supervisor: `iterate` has some of its own, and the paths of Ray's sockets are too long below two.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment(env),
            preexec_fn=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def tree_memory(pid: int) -> int:
    """Proportional set size in bytes of a process and its descendants: a page of n processes is 1/n of each one's."""
    total = 0
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(OSError):  # it has ended
                total += _proportional(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
    return total


def _proportional(rollup: str) -> int:
    """Bytes, from the line `Pss:  123 kB`; 0 of a process that has ended and is still listed."""
    return next((int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:")), 0)
