"""Child processes that, with all their descendants, never outlive the driver, however the driver ends.

A child runs under a small supervisor: `python -m selfplay_pipeline.core.processes COMMAND…`. The supervisor holds the
read end of a pipe whose write end only the driver has, so it notices the driver's end even after `kill -9`. As a
"subreaper" (Linux, prctl(2)) it inherits every orphaned descendant, daemons of Ray included, and can end them all.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.links import append_to
from selfplay_pipeline.core.locks import create_locked, if_abandoned

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
GRACE_SECONDS = 8.0
"""Seconds between asking a process to end and killing it."""
NEEDED_FILES = 1024
"""Number of open files that each process of a server or a trainer needs; most systems allow this number."""
MOST_FILES = 65_536
"""Number of open files to ask for, because each episode that is played has a connection."""
SCRATCH_VARIABLE = "SELFPLAY_SCRATCH"
"""Environment variable with the scratch folder, which the supervisor makes for the command and removes at its end.
Other users cannot read it.
"""
SCRATCH_HOME = Path("/tmp")
"""Short path in place of TMPDIR, because Ray's sockets are in the folder and their paths are limited to 107 characters.
"""
SCRATCH_PREFIX = "selfplay-run-"
DATASETS_CACHE = "HF_DATASETS_CACHE"
"""Environment variable of the cache into which `datasets` copies each file that verl reads; by default in the home
directory.
"""
READABLE = {"SPT_NOENV": "1"}
"""Variable that keeps a process's environment readable after it sets its title with setproctitle, as Ray's processes
do.
"""
SHARED_MEMORY = Path("/dev/shm")
"""Folder in which Linux keeps named semaphores, each as a file `sem.NAME`."""


class Child:
    """A running command under its supervisor."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path) -> None:
        self._process = process
        self.log_path = log_path

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def poll(self) -> int | None:
        """Returns the exit code of the command; None while it runs."""
        return self._process.poll()

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def send(self, line: str) -> None:
        """Send a line to the command's standard input; the line is lost if the command has ended."""
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()

    def stop(self) -> None:
        """End the command and all its descendants; returns when they are gone."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(BrokenPipeError):
                self._process.stdin.close()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)  # a stopped supervisor could not end its processes
        try:
            self._process.wait(GRACE_SECONDS + 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode < 0:  # killed, so that it has not cleaned up
            remove_abandoned(_scratch_home())

    def last_lines(self, count: int = 15) -> str:
        """Returns the end of the log, to show if the command failed."""
        return last_lines(self.log_path, count)


def last_lines(log: Path, count: int) -> str:
    """Returns the end of a log."""
    try:
        with log.open(encoding="utf-8", errors="replace") as file:
            return "".join(deque(file, maxlen=count)).rstrip()
    except OSError:
        return "(no log)"


def was_logged(text: str, log: Path, since: int) -> bool:
    """Whether a log contains a text, ignoring case, after its first `since` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(since)
            return text.lower().encode() in file.read().lower()
    except OSError:
        return False


def spawn(command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> Child:
    """Start a command and return it; its output is appended to `log_path`.

    Raises:
        UserError: The process may open fewer files than a server or a trainer needs.
    """
    check_open_files()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with append_to(log_path) as log:
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(env),
            start_new_session=True,
        )
    return Child(process, log_path)


def allow_open_files() -> int:
    """Raise the limit on open files of this process and its children as far as the system allows; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def check_open_files() -> None:
    """Raises UserError if the limit on open files is too low for a server or a trainer."""
    allowed = allow_open_files()
    if allowed < NEEDED_FILES:
        raise UserError(
            f"{allowed} files may be open at once, too few for a server or a trainer; run `ulimit -n {NEEDED_FILES}` "
            "in a new shell, then the same command there"
        )


def environment(further: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns this process's environment variables, changed for its children.

    Children find programs of this Python environment (`ninja`) even if it is not activated, and no Python process
    imports files of the working directory. PYTHONWARNINGS is left out: with `error`, a library's harmless warning would
    end its process.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    return inherited | {"PATH": path, "PYTHONSAFEPATH": "1"} | {**(further or {})}


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _descendants() -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process().children(recursive=True)]


def _end(find: Callable[[], list[int]], number: signal.Signals, patience: float) -> None:
    """Send a signal to all processes that `find` returns, until it returns none or `patience` seconds have passed."""
    deadline = time.monotonic() + patience
    while (left := find()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        time.sleep(0.05)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _end_all(command: subprocess.Popen[bytes]) -> None:
    """Ask the command to end, wait, then kill all remaining descendants."""
    command.terminate()
    with suppress(subprocess.TimeoutExpired):
        command.wait(GRACE_SECONDS)
    _end(_descendants, signal.SIGTERM, 1.0)
    _end(_descendants, signal.SIGKILL, 5.0)


def _scratch_home() -> Path:
    """Returns the folder for a new scratch folder: the scratch folder of an outer supervisor, which outlives this
    process, else `SCRATCH_HOME`.
    """
    return Path(os.environ.get(SCRATCH_VARIABLE, SCRATCH_HOME))


@contextmanager
def scratch_folder(home: Path) -> Iterator[Path]:
    """Yields a new folder for this user alone and removes it at the end; also removes folders of killed supervisors.

    The folder is locked while its supervisor lives, so that a folder without a lock counts as abandoned.
    """
    remove_abandoned(home)
    folder, lock = create_locked(lambda: Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=home)))
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


@contextmanager
def own_temporary_files() -> Iterator[None]:
    """Keep this process's temporary files, libraries' caches included, in a scratch folder."""
    with scratch_folder(Path(tempfile.gettempdir())) as folder:
        # TMPDIR stays: supervisors search it for folders that this process leaves if it is killed.
        tempfile.tempdir = str(folder)
        try:
            with environment_set({DATASETS_CACHE: str(folder)}):
                yield
        finally:
            tempfile.tempdir = None


@contextmanager
def environment_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables of this process for a block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def name_semaphores() -> None:
    """Name semaphores of this process and its children after the scratch folder, so that they are removed with it.

    Python would name them `mp-…`, and semaphores of a killed process would stay in shared memory.
    """
    if scratch := os.environ.get(SCRATCH_VARIABLE):
        multiprocessing.current_process()._config["semprefix"] = f"/{Path(scratch).name}"  # type: ignore[attr-defined]


def _remove(folder: Path) -> None:
    """Remove a scratch folder, the scratch folders in it, and their semaphores."""
    for owner in (folder, *folder.glob(f"{SCRATCH_PREFIX}*")):
        for semaphore in SHARED_MEMORY.glob(f"sem.{owner.name}-*"):
            semaphore.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(home: Path) -> None:
    """Remove the scratch folders that this user's killed supervisors left, and end their processes."""
    for folder in home.glob(f"{SCRATCH_PREFIX}*"):
        with if_abandoned(folder) as lock:
            if lock is not None and os.fstat(lock).st_uid == os.getuid():
                _end(partial(_living_in, folder), signal.SIGKILL, GRACE_SECONDS)
                _remove(folder)


def _living_in(folder: Path) -> list[int]:
    """Returns the processes that have a scratch folder, or a folder inside it, in their environment."""
    import psutil

    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            scratch = process.environ().get(SCRATCH_VARIABLE)
            if scratch and Path(scratch).is_relative_to(folder) and process.pid != os.getpid():
                found.append(process.pid)
    return found


def supervise(command: Sequence[str]) -> int:
    """Run a command until it ends or standard input closes; leave no descendant. Returns the command's exit code.

    Standard input is passed on to the command.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    over = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        over.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, on_signal)

    with scratch_folder(_scratch_home()) as scratch:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=os.environ | READABLE | dict.fromkeys((SCRATCH_VARIABLE, "TMPDIR", DATASETS_CACHE), str(scratch)),
            preexec_fn=lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )

        def pass_on() -> None:
            """Pass the driver's input on to the command until the driver ends."""
            with suppress(BrokenPipeError):
                while sent := os.read(0, 4096):
                    process.stdin.write(sent)  # type: ignore[union-attr]  # it is a pipe
                    process.stdin.flush()  # type: ignore[union-attr]
            over.set()

        threading.Thread(target=pass_on, daemon=True).start()
        while process.poll() is None and not over.wait(0.1):
            pass
        code = process.poll()
        _end_all(process)
    remove_abandoned(Path(tempfile.gettempdir()))  # the driver's own, if it was killed
    return 128 + signal.SIGTERM if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
