"""The real commands, as seen from outside: how they are started, how they end, and what they leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "data" / "tiny_model"
MARK = "SELFPLAY_CHAOS_MARK"
"""An environment variable that all processes of one room inherit."""
GONE_WITHIN = 15.0
"""Seconds in which whatever a command started must have ended after it."""
_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1
LIMIT = 300.0
"""Seconds after which a command counts as hung."""


@dataclass(frozen=True)
class Ended:
    """A command that has ended, or was ended because it hung: then `code` is None."""

    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def message(self) -> str:
        """What the command said last for people: from its last line that begins with `selfplay:`."""
        _, found, message = f"\n{self.err}".rpartition("\nselfplay: ")
        return message.rstrip() if found and not message.startswith("warning:") else ""

    def traceback(self, *, quotes: bool = False) -> bool:
        """Whether the program itself ended in a traceback.

        Args:
            quotes: its message may quote a log, which may hold one.
        """
        own = self.err.rstrip().removesuffix(self.message) if quotes and self.message else self.err
        return "Traceback (most recent call last)" in own


class Running:
    """A command under way."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self.process, self._out, self._err = process, out, err
        self._began = time.monotonic()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def said(self) -> str:
        """What it has written to standard error so far."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def when(self, happened: Callable[[], bool], limit: float = LIMIT) -> bool:
        """Wait until something has happened; False when the command ended before."""
        deadline = time.monotonic() + limit
        while not happened():
            if not self.alive or time.monotonic() > deadline:
                return False
            time.sleep(0.002)
        return True

    def send(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the driver, or to all of its process group as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                self.process.send_signal(number)

    def ended(self, limit: float = LIMIT) -> Ended:
        """Wait for the end; what takes longer than `limit` is killed and counts as hung."""
        code: int | None
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL, group=True)
            self.process.wait()
            code = None
        out = self._out.read_text(errors="replace") if self._out.exists() else ""
        return Ended(code, out, self.said, time.monotonic() - self._began)


class Room:
    """A place where commands run, with a temporary folder of their own and a mark on all their processes."""

    def __init__(self, folder: Path, tmp: Path) -> None:
        self.folder, self.tmp = folder, tmp
        self.mark = uuid.uuid4().hex
        self._count = 0
        self._scratch_before = set(_scratch())
        self._seen: dict[int, psutil.Process] = {}
        self._over = threading.Event()
        self._sockets: set[tuple[str, int]] = set()
        self._told: set[str] = set()

    def start(
        self,
        *arguments: str,
        stdin: int | IO[Any] | None = subprocess.DEVNULL,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        before: Callable[[], None] | None = None,
        env: dict[str, str] | None = None,
    ) -> Running:
        """Start `selfplay …` in a session of its own.

        Args:
            before: called in the new process, before the program begins.
        """
        self._count += 1
        out, err = (self.folder / f".{name}.{self._count}" for name in ("stdout", "stderr"))
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [sys.executable, "-m", "selfplay_pipeline", *arguments],
                cwd=ROOT,
                stdin=stdin,
                stdout=out_file if stdout is None else stdout,
                stderr=err_file if stderr is None else stderr,
                start_new_session=True,
                preexec_fn=lambda: _at_start(before),
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT), **(env or {})},
            )
        return Running(process, out, err)

    def run(self, *arguments: str, limit: float = LIMIT, **how: Any) -> Ended:
        """Run `selfplay …` to its end."""
        return self.start(*arguments, **how).ended(limit)

    def processes(self) -> list[psutil.Process]:
        """The living processes that carry the mark, and all that were ever seen to descend from them.

        Servers and Ray's workers write their title over their environment, so that no mark can be read there.
        """
        found = {process.pid: process for process in psutil.process_iter() if self._is_marked(process)}
        found |= {pid: process for pid, process in list(self._seen.items()) if _alive(process)}
        for process in list(found.values()):
            with contextlib.suppress(psutil.Error):
                found |= {child.pid: child for child in process.children(recursive=True) if _alive(child)}
        self._seen |= found
        return list(found.values())

    def watch(self) -> None:
        """Look now and then, from a thread of its own, which processes there are and where they listen."""
        while not self._over.wait(1.0):
            with contextlib.suppress(psutil.Error):
                self.note_sockets()

    def find(self, *words: str) -> list[psutil.Process]:
        """Of these, those whose command line has all these words."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                line = " ".join([process.name(), *process.cmdline()])
                if all(word in line for word in words):
                    found.append(process)
        return found

    def _is_marked(self, process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == self.mark and _alive(process))
        except (psutil.Error, OSError):
            return False

    def note_sockets(self) -> set[tuple[str, int]]:
        """Remember which addresses the processes listen on now; they must be free in the end."""
        ours = {process.pid for process in self.processes()}
        listening = {(c.laddr.ip, c.laddr.port) for c in _listening() if c.pid in ours}
        self._sockets |= listening
        return listening

    def left(self, *, files: bool = True) -> list[str]:
        """What is still there after the commands: processes, listening sockets, files in temporary folders.

        What was told before is not told again.

        Args:
            files: look for files too; who was killed cannot remove its own, and the next command does.
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
        if self._sockets:
            still = {(c.laddr.ip, c.laddr.port) for c in _listening() if c.pid is None}
            found += [f"socket {ip}:{port}" for ip, port in sorted(self._sockets & still)]
        return found

    def stop_watching(self) -> None:
        self._over.set()

    def end_all(self) -> None:
        """Kill whatever is left, by its mark, so that no case disturbs the next."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()


@contextlib.contextmanager
def room(folder: Path) -> Iterator[Room]:
    """A room in a folder; what its commands left is removed afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    # Its path is short, because the path of a socket of Ray's below it may have 107 characters at most.
    tmp = Path(tempfile.mkdtemp(prefix="chaos-"))
    place = Room(folder, tmp)
    threading.Thread(target=place.watch, daemon=True).start()
    try:
        yield place
    finally:
        place.stop_watching()
        place.end_all()
        shutil.rmtree(tmp, ignore_errors=True)


def _at_start(before: Callable[[], None] | None) -> None:
    """Tie a new process to us, so that none goes on when the harness itself is killed."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if before is not None:
        before()


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _scratch() -> list[Path]:
    """What the program's supervisors have in the machine's temporary folder, whatever TMPDIR says."""
    return sorted(Path("/tmp").glob("selfplay-*"))


def abandoned(path: Path) -> bool:
    """Whether nobody holds the lock of a scratch folder, be it of this room or of another."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _listening() -> Sequence[Any]:
    return [c for c in psutil.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN]
