"""verl's process: what else is done while it trains, when it is stopped, and when it is started again."""

import asyncio
import errno
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import psutil
import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.processes import spawn
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.train import process
from selfplay_pipeline.train.process import StartSettings, Trainer, TrainError
from selfplay_pipeline.train.stopped import (
    TrainingStopped,
    leave_reason,
    no_space,
    one_line,
    prepare_reason,
    take_reason,
)
from selfplay_pipeline.train.task import Task

TRAINS_UNTIL_THE_OTHERS_HAVE_PLAYED = """
import pathlib, sys, time
print("training", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
(pathlib.Path(sys.argv[2]) / "ended_0").touch()
"""
FAILS_AT_FIRST = """
import json, pathlib, sys
task, tries = json.loads(sys.stdin.readline()), pathlib.Path(sys.argv[1])
tries.write_text((tries.read_text() if tries.exists() else "") + "x")
if len(tries.read_text()) <= TAKEN:
    with open(task["log"], "a") as log:
        log.write(FAULT)
    sys.exit(1)
if FAILS:
    sys.exit("no memory")
(pathlib.Path(sys.argv[2]) / "ended_0").touch()
"""
TAKEN_PORT = "DistNetworkError: code: -98, name: EADDRINUSE, message: address already in use"
SLOW_RAY = "Exception: The current node timed out during startup. This could happen because some of the raylet failed"


def run_instead(monkeypatch: pytest.MonkeyPatch, program: str, file: Path) -> None:
    """Have trainers run a program in place of verl, which is told of this file and of the trainer's folder."""

    def spawn_instead(command, log, env):
        return spawn([sys.executable, "-c", program, str(file), command[-1]], log, env)

    monkeypatch.setattr(process, "spawn", spawn_instead)


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    """A trainer whose process ends once the file of the episodes' figures is there."""
    run_instead(monkeypatch, TRAINS_UNTIL_THE_OTHERS_HAVE_PLAYED, tmp_path / "games.summary.json")
    with Trainer() as trainer:
        yield trainer


@pytest.fixture
def train(trainer, tmp_path) -> Callable:
    """Waits for a training."""
    return partial(trainer.run, StartSettings((), {}), Task(log=tmp_path / "train.log"))


async def test_episodes_are_played_while_a_training_is_waited_for(train, tmp_path):
    """The training would never end if its wait let nothing else be done."""
    config = load_config("tiny", {"generate.num_episodes": 8})
    playing = generate_episodes(config, tmp_path / "games.jsonl", seats=("sharing", "sharing"))
    _, played = await asyncio.wait_for(asyncio.gather(train(lambda: False), playing), 120)
    assert played.episodes == 8


async def test_the_trainer_is_stopped_when_its_wait_is_cancelled(train, trainer, tmp_path):
    waiting, log = asyncio.create_task(train(lambda: False)), tmp_path / "train.log"
    while not (log.exists() and "training" in log.read_text()):
        await asyncio.sleep(0.01)
    assert trainer.process_id is not None
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled() and trainer.process_id is None


def test_ctrl_c_while_a_training_is_waited_for_stops_its_processes(train, trainer, tmp_path):
    """As a command takes it; nothing but the wait hears of it."""
    log, asked = tmp_path / "train.log", []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def watch() -> bool:
        if not asked and "training" in log.read_text():
            asked.append(trainer.process_id)
            signal.raise_signal(signal.SIGINT)
        return False

    try:
        stopping.interrupt()
        with pytest.raises(KeyboardInterrupt):
            stopping.run(train(watch))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        stopping.stop.asked = None
    assert asked and trainer.process_id is None and not psutil.pid_exists(asked[0])


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "times", "fails", "begun", "starts"),
    [
        (TAKEN_PORT, 1, False, False, 2),
        (SLOW_RAY, 1, False, False, 2),
        (TAKEN_PORT, 9, False, False, 3),
        (TAKEN_PORT, 9, False, True, 1),
        (TAKEN_PORT, 0, True, False, 1),
    ],
    ids=["port taken once", "Ray too slow once", "taken again and again", "after a step", "another reason"],
)
def test_a_training_with_a_passing_fault_before_a_step_is_started_again_twice_at_most(
    tmp_path, monkeypatch, caplog, fault, times, fails, begun, starts
):
    program = FAILS_AT_FIRST.replace("TAKEN", str(times)).replace("FAILS", str(fails)).replace("FAULT", repr(fault))
    run_instead(monkeypatch, program, tmp_path / "tries")
    ends = pytest.raises(TrainError, match="ended with exit code 1") if times != 1 else nullcontext()
    with Trainer() as trainer, ends:
        asyncio.run(trainer.run(StartSettings((), {}), Task(log=tmp_path / "train.log"), lambda: begun))
    assert (len((tmp_path / "tries").read_text()), len(caplog.messages)) == (starts, starts - 1)
    if times == 1:
        (line,) = caplog.messages
        named = "timed out during startup" if fault is SLOW_RAY else "Address already in use"
        assert f"before the first step ({named}" in line and "starting it again (1 of 2)" in line


# --- why it stopped, as one line


class InAnotherProcess(Exception):
    """As Ray wraps an error, once a process."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"Traceback …\n{cause}")
        self.cause = cause


FULL = OSError(errno.ENOSPC, "No space left on device", "/a/file")
REASONS = [
    (TrainingStopped("step 3: no"), "step 3: no"),
    (UserError("a file: no"), "a file: no"),
    (InAnotherProcess(InAnotherProcess(TrainingStopped("step 3: no"))), "step 3: no"),
    (FULL, "/a/file: No space left on device"),
    (RuntimeError("\n first line \nsecond"), "RuntimeError: first line"),
    (KeyError(), "KeyError"),
    (pickle.UnpicklingError("Weights only\nload unsupported GLOBAL posix.system whose"), "it asks for posix.system, "),
    (pickle.UnpicklingError("invalid load key"), "it does not hold a training's data"),
]


@pytest.mark.parametrize(("error", "expected"), REASONS, ids=[type(error).__name__ for error, _ in REASONS])
def test_it_is_what_really_happened(tmp_path, error, expected):
    assert one_line(error).startswith(expected) and "\n" not in one_line(error)
    prepare_reason(tmp_path / "reason")
    room = (tmp_path / "reason").stat().st_size
    leave_reason(tmp_path / "reason", error)
    assert (tmp_path / "reason").stat().st_size == room, "a full disk has no more"
    assert take_reason(tmp_path / "reason") == (one_line(error), isinstance(error, UserError))
    assert not (tmp_path / "reason").exists()


def test_a_full_disk_is_told_from_other_errors_and_no_reason_is_none(tmp_path):
    prepare_reason(tmp_path / "reason")
    assert [take_reason(tmp_path / "reason") for _ in range(2)] == [None, None]
    wrapped = RuntimeError("I/O error: No space left on device (os error 28)")
    assert no_space(InAnotherProcess(FULL)) and no_space(wrapped)
    assert not no_space(OSError(errno.EIO, "Input/output error"))
