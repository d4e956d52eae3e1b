"""Child processes that never outlive the driver, with all their descendants, however the driver ends.

A child runs under a small supervisor: `python -m selfplay_pipeline.processes COMMAND…`. The supervisor holds the
read end of a pipe whose write end only the driver has, so it notices the driver's end even after `kill -9`. As a
"subreaper" (Linux, prctl(2)) it inherits every orphaned descendant, daemons of Ray included, and can end them all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 8.0
"""Time between asking a process to end and killing it."""


SCRATCH_VARIABLE = "SELFPLAY_SCRATCH"
"""Names a folder that the supervisor makes for the command, and removes after it."""


class Child:
    """A running command under its supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """Of the supervisor."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code of the command, None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def stop(self) -> None:
        """End the command and all its descendants; returns when they are gone."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)  # a supervisor that is stopped could end nothing
        try:
            self._process.wait(GRACE_SECONDS + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last_lines(self, count: int = 15) -> str:
        """The end of the log, to show when the command failed."""
        try:
            with self.log_path.open(errors="replace") as file:
                return "".join(deque(file, maxlen=count)).rstrip()
        except OSError:
            return "(no log)"


def spawn(command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> Child:
    """Start a command whose output goes to `log_path` (appended)."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(env),
            start_new_session=True,
        )
    return Child(process, log_path)


def environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment variables; programs of its Python environment (`ninja`) are found unactivated too."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, **(further or {})}


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _descendants() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end_all(first: int | None) -> None:
    """Ask the command to end, wait, then kill whatever is left."""
    if first is not None:
        _signal([first], signal.SIGTERM)
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and first is not None and _alive(first):
        time.sleep(0.1)
    for number, patience in ((signal.SIGTERM, 1.0), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + patience
        while (left := _descendants()) and time.monotonic() < deadline:
            _signal(left, number)
            time.sleep(0.1)
            _reap()


def _alive(pid: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def supervise(command: Sequence[str]) -> int:
    """Run a command until it ends or standard input closes; leave no descendant. Returns its exit code."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    over = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)

    def watch_driver() -> None:
        while os.read(0, 4096):
            pass
        over.set()

    threading.Thread(target=watch_driver, daemon=True).start()
    # In /tmp, because Ray puts sockets there and their paths may have 107 characters at most; inside the folder of the
    # supervisor around this one, if any, which may kill this one before it has cleaned up.
    outer = os.environ.get(SCRATCH_VARIABLE, "/tmp")
    with tempfile.TemporaryDirectory(prefix="selfplay-", dir=outer, ignore_cleanup_errors=True) as scratch:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env={**os.environ, SCRATCH_VARIABLE: scratch},
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
        while process.poll() is None and not over.wait(0.1):
            pass
        code = process.poll()
        _end_all(process.pid if code is None else None)
    return 128 + signal.SIGTERM if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
