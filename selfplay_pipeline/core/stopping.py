"""Signals that ask a command to stop: the first one stops it, and further ones do not disturb the cleanup.

The module imports nothing that takes long, so that it handles signals from the start.
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
"""Exit code of a command that a signal stopped; the shell's convention for Ctrl-C."""
PATIENCE_SECONDS = 30.0
"""Seconds that the cleanup may take.

A signal after this time stops the command again, in case the first one was swallowed.
"""


class Stop:
    """Record of a signal that asked the command to stop.

    Attributes:
        asked: Time of the signal by the monotonic clock; None if there was no signal.
        cancel: Cancels the running task, if any, so that it can clean up.
        computing: Whether the task computes for long without an await, so that a cancellation would act late.
    """

    asked: float | None = None
    cancel: Callable[[], object] | None = None
    computing = False

    def on_signal(self, *_: object) -> None:
        """Stop the command, unless it is stopping already."""
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
    """Lets a signal interrupt a block or a function at once, instead of at the task's next await.

    The block must run in the main thread, await nothing, and hold only resources that its callers clean up.
    """
    before, stop.computing = stop.computing, True
    try:
        yield
    finally:
        stop.computing = before


def quit_at_once() -> None:
    """From now on, exit at the first signal without cleanup; used during the imports, before any work begins."""
    _handle(_quit)


def interrupt() -> None:
    """From now on, raise KeyboardInterrupt at the first signal; further signals do not interrupt the cleanup."""
    _handle(stop.on_signal)


def over(*, stopped: bool) -> None:
    """From now on, ignore signals: the cleanup is over, and no signal may change the exit code.

    Args:
        stopped: Whether a signal stopped the command. If so, the process exits at once and does not wait for threads,
            such as one that downloads a model.
    """
    _handle(signal.SIG_IGN)
    if stopped:
        os._exit(STOPPED_CODE)


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Run work as a task and return its result; a signal cancels the task, which then cleans up.

    Raises:
        KeyboardInterrupt: A signal stopped the work.
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
    """Run a coroutine until it ends or a signal stops it; returns its result."""
    import asyncio  # takes long

    return asyncio.run(stoppable(work))


def leave_closed_terminal() -> bool:
    """Redirects the standard streams to the null device if their terminal was closed, so that the cleanup can still
    print.

    Returns:
        Whether the terminal was closed.
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
    """Writes a line to file descriptor 2 without Python's buffers, which may hold half a line."""
    with suppress(OSError):
        os.write(2, line.encode() + b"\n")


def _handle(handler: Callable[..., None] | signal.Handlers) -> None:
    # A shell's background jobs start with SIGINT ignored; then nothing could stop a run but kill -9.
    signal.signal(signal.SIGINT, handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` asks
            signal.signal(number, handler)
