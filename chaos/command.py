"""Runs the real command line as a process of its own, with limits and with a listing of the files that it left.

The process is forked from a server that has imported everything once (the standard library's `forkserver`), which saves
each command seconds of imports. It then runs the same `main()` as the command `selfplay`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

IMPORTED = (
    "chaos.command", "selfplay_pipeline.cli", "selfplay_pipeline.iterate.loop", "selfplay_pipeline.train.online_stage",
    "selfplay_pipeline.convert.check", "selfplay_pipeline.engines.transformers_engine", "selfplay_pipeline.report.run",
    "selfplay_pipeline.report.questions.analysis", "selfplay_pipeline.slime.check",
    "pyarrow.parquet", "torch", "transformers", "transformers.models.qwen2.modeling_qwen2",
    "verl.utils.dataset.rl_dataset",
)  # fmt: skip
"""Modules that the server imports: those that a command imports before it refuses its input.

A module missing here only costs time.
"""
SETTINGS = {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""Environment variables that make all machines equal: no GPU, no network, and no thread that a fork would lose."""
BACKGROUND = ("sglang", "train.verl.main", "raylet")
"""Words in the command line of a process that a command starts to serve or to train."""
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Limits:
    """Limits at which a command is ended."""

    seconds: float = 20.0
    gigabytes: float = 3.0
    """Resident memory of the command and its children; address space is unlimited, since torch reserves much."""


@dataclass(frozen=True)
class Ended:
    """Observations of an ended command from outside."""

    code: int | None
    """Exit code, for a signal its negative number; None if the harness ended the command."""
    stdout: str
    stderr: str
    seconds: float
    stopped_for: str = ""
    """Limit at which the harness ended the command, "" if none."""
    began: str = ""
    """Command line of the server or trainer that it started, "" if none; the harness ends it at once."""


def run(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None, limits: Limits = Limits()
) -> Ended:
    """Run `selfplay` with these arguments in a folder."""
    return _watched(_selfplay, arguments, folder, env or {}, limits)


def run_program(command: Sequence[str], folder: Path, limits: Limits = Limits()) -> Ended:
    """Run any other program in a folder, for the tests of the harness."""
    return _watched(_program, command, folder, {}, limits)


def begin() -> None:
    """Start the server, and wait until it has imported everything, so that no command's time includes the imports."""
    os.environ.update(SETTINGS)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    first = context.Process(target=nothing)
    first.start()
    first.join()


def nothing() -> None:
    """Do nothing, in the first process."""


def stop() -> None:
    """End the running commands, when the harness is stopped."""
    for pid in list(_running):
        _end(pid)


_starting = threading.Lock()
_running: set[int] = set()
"""Process ids of the running commands."""


def _watched(main: object, arguments: Sequence[str], folder: Path, env: Mapping[str, str], limits: Limits) -> Ended:
    out, err = folder.with_name(folder.name + ".stdout"), folder.with_name(folder.name + ".stderr")
    started = time.monotonic()
    with _starting:  # the standard library starts its server only once, but not if two threads ask simultaneously
        process = multiprocessing.get_context("forkserver").Process(
            target=_child, args=(main, list(arguments), str(folder), str(out), str(err), dict(env))
        )
        process.start()
        # The next start, in another thread, would also wait for this process, and one of the two would get no exit
        # code.
        multiprocessing.process._children.discard(process)  # type: ignore[attr-defined]
    pid = process.pid or 0
    _running.add(pid)
    stopped, began = "", ""
    while process.is_alive() and not (stopped or began):
        process.join(POLL_SECONDS)
        memory, began = _look(pid)
        if memory > limits.gigabytes * 1e9:
            stopped = f"took {memory / 1e9:.1f} GB"
        elif time.monotonic() - started > limits.seconds:
            stopped = f"still running after {limits.seconds:g} s"
    if stopped or began:
        _end(pid)
    process.join()
    _running.discard(pid)
    code = None if stopped or began else process.exitcode
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    for path in (out, err):
        path.unlink(missing_ok=True)
    return Ended(code, texts[0], texts[1], time.monotonic() - started, stopped, began)


def _look(pid: int) -> tuple[float, str]:
    """Returns the resident bytes of a process and its descendants, and the first descendant that serves or trains."""
    memory, began = 0.0, ""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in [top, *top.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                memory += process.memory_info().rss
                command = " ".join(process.cmdline())
                if process.pid != pid and any(word in command for word in BACKGROUND):
                    began = began or command
    return memory, began


def _end(pid: int) -> None:
    """End a process and all its descendants, each by its id."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        top.suspend()
        for process in [*top.children(recursive=True), top]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _child(main: object, arguments: list[str], folder: str, out: str, err: str, env: dict[str, str]) -> None:
    """Set up session, folder, files and environment in the new process, then run the command."""
    import tempfile

    os.setsid()
    os.chdir(folder)
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, err, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        os.dup2(os.open(path, flags, 0o600), number)
    os.environ.update(env)
    tempfile.tempdir = None
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    assert callable(main)
    main(arguments)


def _selfplay(arguments: list[str]) -> None:
    from selfplay_pipeline.cli import main

    sys.argv = ["selfplay", *arguments]
    main()


def _program(arguments: list[str]) -> None:
    os.execvp(arguments[0], arguments)
