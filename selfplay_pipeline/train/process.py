"""Management of verl's process, which is started on demand or in advance, reused by later trainings, and always
stopped.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.loopback import TAKEN
from selfplay_pipeline.core.processes import Child, last_lines, spawn, was_logged
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.train.stopped import Reason, prepare_reason, take_reason
from selfplay_pipeline.train.task import REASON, Task, ended_file

POLL_SECONDS = 0.05
MAX_REPEATS = 2
"""Maximum number of restarts of a training after transient faults before its first step."""
PASSING = {TAKEN: "verl found a port taken", "timed out during startup": "Ray did not start within its 30 seconds"}
"""Transient faults: the text in a log, and a description for messages."""


class TrainError(RuntimeError):
    """verl failed or did not do the planned steps; the message has the reason, or else the end of verl's log."""


@dataclass(frozen=True)
class StartSettings:
    """Settings with which verl's processes are started; all trainings in one process share them.

    Attributes:
        settings: Settings that determine the processes; only compared for equality.
        env: Environment variables.
    """

    settings: tuple[str, ...]
    env: Mapping[str, str]


class Process:
    """A running process of verl, with all its child processes."""

    def __init__(self, start: StartSettings, log: Path) -> None:
        self.start = start
        self._tasks = 0
        self._logs = {log: _size(log)}
        self._folder = Path(tempfile.mkdtemp(prefix="trainer-"))
        command = [sys.executable, "-u", "-m", "selfplay_pipeline.train.verl.main", str(self._folder)]
        self._child: Child = spawn(command, log, start.env)

    @property
    def pid(self) -> int:
        """Process id of the process's supervisor."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        return self._child.poll()

    @property
    def ended(self) -> bool:
        """Whether the last task is done."""
        return ended_file(self._folder, self._tasks - 1).exists()

    def send(self, task: Task) -> None:
        """Send a task to the process."""
        self._logs.setdefault(task.log, _size(task.log))
        prepare_reason(self._folder / REASON)
        self._child.send(task.model_dump_json())
        self._tasks += 1

    def take_reason(self) -> Reason | None:
        """Returns the reason why the last task failed, None if unknown."""
        return take_reason(self._folder / REASON)

    def passing_fault(self) -> str | None:
        """Returns the transient fault, a key of `PASSING`, that the process or a child has logged; None without one."""
        found = (text for text in PASSING for log, since in self._logs.items() if was_logged(text, log, since))
        return next(found, None)

    def stop(self) -> None:
        self._child.stop()
        shutil.rmtree(self._folder, ignore_errors=True)


def _size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


class Trainer:
    """Holder of at most one verl process at a time.

    All state is also in files, so a restarted process ends with the same weights.
    """

    def __init__(self) -> None:
        self._process: Process | None = None
        self.trained: Path | None = None
        """Folder trainer_state/ of the process's last training."""

    @property
    def process_id(self) -> int | None:
        """Process id of the supervisor, None if there is no process."""
        return None if self._process is None else self._process.pid

    def prepare(self, start: StartSettings, task: Task) -> None:
        """Start a process that loads the model in the background, unless a suitable one runs; arguments as in `run`."""
        if not self._fits(start):
            self._started(start, task.log).send(task)

    async def run(self, start: StartSettings, task: Task, watch: Callable[[], bool]) -> None:
        """Run a task to its end; a start with a transient fault is repeated.

        Args:
            start: Settings that the task needs; a process with other settings is replaced.
            task: The task.
            watch: Function that is called repeatedly during the task and once after it; returns whether the task has
                written anything yet.

        Raises:
            TrainError: verl failed.
            UserError: Data or options turned out to be unusable.
        """
        repeats = 0
        while fault := await self._run(start, task, watch, repeats < MAX_REPEATS):
            repeats += 1
            again = f"starting it again ({repeats} of {MAX_REPEATS})"
            logger.warning(f"{PASSING[fault]} before the first step ({fault}; see {task.log}); {again}")

    async def _run(self, start: StartSettings, task: Task, watch: Callable[[], bool], may_repeat: bool) -> str | None:
        """Run a task to its end; returns the transient fault if the task did not begin and may be repeated."""
        process = self._process
        if process is None or not self._fits(start):
            process = self._started(start, task.log)
        process.send(task)
        try:
            over = begun = False
            while not over:
                # Read before `watch`, which so runs once more after the end and sees all that the task wrote.
                over = process.ended or process.exit_code is not None
                begun = watch()
                if not over:
                    await asyncio.sleep(POLL_SECONDS)
        except BaseException:
            self.stop()
            raise
        if not process.ended:
            code, reason = process.exit_code, process.take_reason()
            self.stop()
            if may_repeat and not begun and (fault := process.passing_fault()):
                return fault
            if reason and reason.of_user:
                raise UserError(reason.text)
            if reason:
                raise TrainError(f"the training stopped: {reason.text} (all of it: {task.log})")
            raise TrainError(f"verl ended with exit code {code}; the end of {task.log}:\n{last_lines(task.log, 25)}")
        return None

    def holds(self, state: Path) -> bool:
        """Whether the running process has weights and optimizer of the training with this folder trainer_state/."""
        return self._process is not None and self._process.exit_code is None and self.trained == state.resolve()

    def stop(self) -> None:
        """End the process, if there is one, and all processes that it started."""
        if self._process is not None:
            self._process.stop()
        self._process = self.trained = None

    def __enter__(self) -> Trainer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _fits(self, start: StartSettings) -> bool:
        """Whether a process is running that was started with these settings."""
        return self._process is not None and self._process.exit_code is None and self._process.start == start

    def _started(self, start: StartSettings, log: Path) -> Process:
        self.stop()
        self._process = Process(start, log)
        return self._process
