"""Measures the cost of a command: its time, and the memory of all its processes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.processes import PR_SET_PDEATHSIG, environment, last_lines

SECONDS_BETWEEN_LOOKS = 1.0
GROWN = 1.02
"""Growth of a process tree's resident memory after which its proportional memory is measured again."""
LOOKING = 0.02
"""Largest share of a core that measuring may take: the kernel counts 1 GB of pages in 0.03 s."""
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Taken:
    """Seconds of a command, processor seconds of all its processes, its peak memory in bytes, and the processor seconds
    of measuring that memory.
    """

    seconds: float
    processor: float
    peak: int
    looking: float


def measured(command: Sequence[str], log: Path, env: Mapping[str, str]) -> Taken:
    """Run a command to its end; returns its cost. The command must end its own processes when it is told to end.

    Args:
        command: The command.
        log: File for its output.
        env: Environment variables in addition to this process's own.

    Raises:
        UserError: The command failed.
    """
    peak, resident, looking, began = 0, 0, 0.0, time.monotonic()
    before, process = _processor(), _started(command, log, env)
    try:
        while True:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(SECONDS_BETWEEN_LOOKS)
                break
            looked = time.thread_time()
            now = tree_memory(process.pid, _resident)
            if now > GROWN * resident and looking < LOOKING * (time.monotonic() - began):
                peak, resident = max(peak, tree_memory(process.pid, _proportional)), now
            looking += time.thread_time() - looked
        seconds = time.monotonic() - began
    finally:
        process.terminate()  # unless it has ended
        process.wait()
    if code:
        raise UserError(f"{' '.join(command)} ended with exit code {code}; the end of {log}:\n{last_lines(log, 15)}")
    return Taken(seconds, _processor() - before, peak, looking)


def _processor() -> float:
    """Returns the processor seconds of all processes that this one has started and waited for, with what they waited
    for in turn.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _started(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process that is told to end when this one is killed.

    It has no supervisor: `iterate` has some of its own, and below two of them the paths of Ray's sockets are too long.
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


def tree_memory(pid: int, of: Callable[[Path], int]) -> int:
    """Returns the bytes of a process and its descendants.

    Args:
        pid: Id of the process.
        of: Function that returns the bytes of one process, from its folder in /proc.
    """
    total = 0
    with suppress(psutil.Error):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with suppress(OSError):  # the process has ended
                total += of(Path("/proc") / str(process.pid))
    return total


def _resident(folder: Path) -> int:
    """Returns the resident set size; shared pages count in each process."""
    return int((folder / "statm").read_text().split()[1]) * PAGE


def _proportional(folder: Path) -> int:
    """Returns the proportional set size: 1/n of a page that n processes share; 0 for a process that has ended."""
    lines = (folder / "smaps_rollup").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
