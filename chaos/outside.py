"""Runs the real commands and observes them from outside: start, end, and leftovers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from watching import Watch, carriers

from selfplay_pipeline.core.locks import if_abandoned

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "data" / "tiny_model"
MARK = "SELFPLAY_CHAOS_MARK"
"""Environment variable that all processes of one room inherit."""
GONE_WITHIN = 15.0
"""Seconds after a command within which its processes must have ended."""
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
LIMIT = 300.0
"""Seconds after which a command counts as hung."""


@dataclass(frozen=True)
class Ended:
    """An ended command; `code` is None if it hung and was killed."""

    code: int | None
    err: str
    seconds: float

    @property
    def message(self) -> str:
        """The command's last message for people: its text from the last line that begins with `selfplay:`."""
        _, found, message = f"\n{self.err}".rpartition("\nselfplay: ")
        return message.rstrip() if found and not message.startswith("warning:") else ""

    @property
    def traceback(self) -> bool:
        """Whether the program ended with a traceback."""
        return "Traceback (most recent call last)" in self.err

    @property
    def last_line(self) -> str:
        """The last line that is not empty."""
        return next((line.strip() for line in reversed(self.err.splitlines()) if line.strip()), "nothing was said")


class Running:
    """A running command."""

    def __init__(self, process: subprocess.Popen[bytes], err: Path) -> None:
        self.process, self._err = process, err
        self._began = time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """The command's output to standard error so far."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def when(self, happened: Callable[[], bool], limit: float = LIMIT) -> bool:
        """Wait for an event; returns False if the command ended or the time was over before."""
        deadline = time.monotonic() + limit
        while not happened():
            if not self.alive or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the driver, or to its whole process group as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def ended(self, limit: float = LIMIT) -> Ended:
        """Wait for the end; after `limit` seconds the command is killed and counts as hung."""
        code: int | None
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL, group=True)
            self.process.wait()
            code = None
        return Ended(code, self.said, time.monotonic() - self._began)


class Room:
    """A place for commands, with a temporary folder of its own and a mark on all their processes."""

    def __init__(self, folder: Path, tmp: Path) -> None:
        self.folder, self.tmp = folder, tmp
        self.mark = uuid.uuid4().hex
        self._count = 0
        self._scratch_before = set(_scratch())
        self.watch = Watch(self.mark)
        self._told: set[str] = set()

    def start(
        self,
        *arguments: str,
        stdout: int | IO[Any] = subprocess.DEVNULL,
        stderr: int | IO[Any] | None = None,
        before: Callable[[], None] | None = None,
    ) -> Running:
        """Start `selfplay …` in a session of its own.

        Args:
            arguments: Arguments of the command.
            stdout: The process's standard output.
            stderr: The process's standard error; by default a file.
            before: Function that is called in the new process, before the program begins.
        """
        self._count += 1
        err = self.folder / f".stderr.{self._count}"
        with err.open("wb") as err_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "selfplay_pipeline", *arguments],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=err_file if stderr is None else stderr,
                start_new_session=True,
                preexec_fn=lambda: _at_start(before),
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT)},
            )
        return Running(process, err)

    def run(self, *arguments: str, limit: float = LIMIT, **how: Any) -> Ended:
        """Run `selfplay …` to its end."""
        return self.start(*arguments, **how).ended(limit)

    def processes(self) -> list[psutil.Process]:
        """Returns the living processes with the mark, all that were seen with it, and their descendants.

        Servers and Ray's workers overwrite their environment with their title, so that their mark cannot be read.
        """
        found = set(filter(_alive, carriers(self.mark) | self.watch.processes))
        for process in list(found):
            with contextlib.suppress(psutil.Error):
                found.update(filter(_alive, process.children(recursive=True)))
        self.watch.processes |= found
        return list(found)

    def left(self, *, files: bool = True) -> list[str]:
        """Returns the new leftovers of the commands: processes, listening sockets, files in temporary folders.

        Each leftover is reported only once.

        Args:
            files: Whether to look for files too; a killed command cannot remove its own, which the next command does.
        """
        deadline = time.monotonic() + GONE_WITHIN
        while (found := set(self._left_now(files)) - self._told) and time.monotonic() < deadline:
            time.sleep(0.2)
        self._told |= found
        return sorted(found)

    def _left_now(self, files: bool) -> list[str]:
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                found.append(f"process {process.pid} {' '.join(process.cmdline())[:80] or process.name()}")
        if files:
            found += [f"file {path.relative_to(self.tmp)} in TMPDIR" for path in sorted(self.tmp.iterdir())]
            new = [path for path in _scratch() if path not in self._scratch_before]
            found += [f"folder {path}" for path in new if abandoned(path)]
        seen = {(listener.address, listener.port) for listener in self.watch.listeners}
        connections = psutil.net_connections(kind="inet") if seen else []
        still = {(c.laddr.ip, c.laddr.port) for c in connections if c.status == psutil.CONN_LISTEN and c.pid is None}
        return found + [f"socket {ip}:{port}" for ip, port in sorted(seen & still)]

    def end_all(self) -> None:
        """Kill all remaining processes of the room, so that no case disturbs the next."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def room(folder: Path) -> Iterator[Room]:
    """Yields a room in a folder; its remaining processes and temporary files are removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    # Short path, because Ray's socket paths below it are limited to 107 characters.
    tmp = Path(tempfile.mkdtemp(prefix="chaos-"))
    place = Room(folder, tmp)
    try:
        yield place
    finally:
        place.watch.stop()
        place.end_all()
        shutil.rmtree(tmp, ignore_errors=True)


def heed_signals() -> None:
    """Restore signals that a shell's background jobs and `nohup` ignore; the tested commands inherit the handlers."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def _at_start(before: Callable[[], None] | None) -> None:
    """Tie a new process to this one, so that it does not survive the harness."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if before is not None:
        before()


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _scratch() -> list[Path]:
    """Returns the supervisors' folders in the machine's temporary folder, which do not depend on TMPDIR."""
    return sorted(Path("/tmp").glob("selfplay-*"))


def abandoned(path: Path) -> bool:
    """Whether no process of any room holds the lock of a scratch folder."""
    with if_abandoned(path) as lock:
        return lock is not None
