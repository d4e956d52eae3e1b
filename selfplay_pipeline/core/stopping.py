"""Signals that ask a command to stop: the first one stops it, and further ones do not disturb the cleaning up.

Imports nothing that takes long, so that a signal is understood from the start.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

STOPPED = "stopped; what was finished is kept, the same command continues"
STOPPED_CODE = 130
"""The exit code of a command that a signal has stopped, as of a shell's after Ctrl-C."""
PATIENCE_SECONDS = 30.0
"""Servers are ended within this time. A signal that comes later acts again: the first may have been swallowed."""


class Stop:
    """Record of a signal that has asked the command to stop.

    Attributes:
        asked: when, by the monotonic clock; None if it has not.
        cancel: cancels the task that is running, if any, so that it can clean up.
        computing: whether the task does work of its own for long, so that a cancellation would be heard late.
    """

    asked: float | None = None
    cancel: Callable[[], object] | None = None
    computing = False

    def on_signal(self, *_: object) -> None:
        """Stop, unless that is under way."""
        leave_closed_terminal()
        now, before = time.monotonic(), self.asked
        if before is not None and now - before < PATIENCE_SECONDS:
            return
        self.asked = now
        if before is None:
            _write("selfplay: stopping")
            if self.cancel is not None and not self.computing:
                self.cancel()
                return
        raise KeyboardInterrupt


stop = Stop()


@contextmanager
def computing() -> Iterator[None]:
    """Lets a signal interrupt the work of a block, or of a function, at once; without it a task goes on to an await.

    The block is the main thread's, awaits nothing, and holds nothing that its callers do not clean up.
    """
    before, stop.computing = stop.computing, True
    try:
        yield
    finally:
        stop.computing = before


def quit_at_once() -> None:
    """End at a signal from now on: for the time of the imports, in which nothing has begun."""
    _handle(_quit)


def interrupt() -> None:
    """Stop at a signal from now on as at Ctrl-C, and clean up; further signals do not interrupt that."""
    _handle(stop.on_signal)


def over(*, stopped: bool) -> None:
    """All is cleaned up: no signal changes the exit code any more.

    Args:
        stopped: end at once, since the interpreter would wait for threads, such as one that downloads a model.
    """
    _handle(signal.SIG_IGN)
    if stopped:
        os._exit(STOPPED_CODE)


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Do the work of a task so that a signal cancels it and lets it clean up.

    Raises:
        KeyboardInterrupt: a signal has stopped it.
    """
    import asyncio  # takes long

    loop, task, asked_before = asyncio.get_running_loop(), asyncio.current_task(), stop.asked
    assert task is not None
    stop.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
    try:
        done = await work
        if stop.asked != asked_before:  # the work ended without another await, at which the task would be cancelled
            raise KeyboardInterrupt
        return done
    except asyncio.CancelledError:
        if stop.asked == asked_before:
            raise
        raise KeyboardInterrupt from None
    finally:
        stop.cancel = None


def run(work: Coroutine[Any, Any, T]) -> T:
    """Do work to its end, or until a signal stops it."""
    import asyncio  # takes long

    return asyncio.run(stoppable(work))


def leave_closed_terminal() -> bool:
    """Lets the standard streams lead nowhere if their terminal was closed, so that cleaning up can still print.

    Returns whether it was closed.
    """
    closed = False
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError as error:
            if error.errno == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                closed = True
    return closed


def _quit(*_: object) -> None:
    _write(f"selfplay: {STOPPED}")
    os._exit(STOPPED_CODE)


def _write(line: str) -> None:
    """Past Python's own streams, which may be in the middle of a line."""
    with suppress(OSError):
        os.write(2, line.encode() + b"\n")


def _handle(handler: Callable[..., None] | signal.Handlers) -> None:
    # A shell's background jobs start with SIGINT ignored; then nothing could stop a run but kill -9.
    signal.signal(signal.SIGINT, handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` asks
            signal.signal(number, handler)
