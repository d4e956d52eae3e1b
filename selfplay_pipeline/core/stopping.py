"""Signals that ask a command to stop: the first one stops it, and further ones do not disturb the cleanup.

The module imports nothing that takes long, so that it handles signals from the start.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

STOPPED = "stopped; what was finished is kept, the same command continues"
STOPPED_CODE = 130
"""Exit code of a command that a signal stopped; the shell's convention for Ctrl-C."""
PATIENCE_SECONDS = 30.0
"""Seconds that the cleanup may take.

A signal after this time stops the command again, in case the first one was swallowed.
"""
RETRY_SECONDS = 0.05
"""Seconds until a stop is tried again that came at a moment when Python may swallow an exception."""


class Stop:
    """Record of a signal that asked the command to stop.

    Python reports an exception of a handler and goes on if the handler interrupts a `__del__` or a callback of C code;
    in an import, libraries catch it, or C++ code aborts. So the stop is tried again until an exception gets through,
    and `check` lets nothing be stored meanwhile.

    Attributes:
        asked: Time of the signal by the monotonic clock; None if there was no signal.
        cancel: Cancels the running task, if any, so that it can clean up.
        computing: Whether the task computes for long without an await, so that a cancellation would act late.
    """

    asked: float | None = None
    cancel: Callable[[], object] | None = None
    computing = False

    def on_signal(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Stop the command, unless it is stopping already."""
        leave_closed_terminal()
        now, before = time.monotonic(), self.asked
        if before is not None:
            if now - before >= PATIENCE_SECONDS:
                self.asked = now
                raise KeyboardInterrupt
            return
        self.asked = now
        _write("selfplay: stopping")
        self.interrupt(frame)

    def interrupt(self, frame: FrameType | None) -> None:
        """Cancel the task or raise KeyboardInterrupt; later if Python might swallow it in this frame."""
        if self.cancel is not None and not self.computing:
            self.cancel()
        elif _may_be_swallowed(frame) and self.asked and time.monotonic() - self.asked < PATIENCE_SECONDS:
            self.try_again()
        else:
            raise KeyboardInterrupt

    def try_again(self) -> None:
        """Stop the command in a moment."""
        signal.signal(signal.SIGALRM, lambda number, frame: self.interrupt(frame))
        signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal asked the command to stop; called before anything is stored or shown."""
        if self.asked is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)  # the cleanup that begins here is not to be interrupted
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


@contextmanager
def until_stopped() -> Iterator[None]:
    """Makes a signal the ordinary end of a block, after which the command goes on."""
    with suppress(KeyboardInterrupt):
        yield
    stop.asked = None


def quit_at_once() -> None:
    """From now on, exit at the first signal without cleanup; used during the imports, before any work begins."""
    _handle(_quit)


def interrupt() -> None:
    """From now on, raise KeyboardInterrupt at the first signal; further signals do not interrupt the cleanup."""
    sys.unraisablehook = _on_swallowed
    _handle(stop.on_signal)


def over(*, stopped: bool) -> None:
    """From now on, ignore signals: the cleanup is over, and no signal may change the exit code.

    Args:
        stopped: Whether a signal stopped the command. If so, the process exits at once and does not wait for threads,
            such as one that downloads a model.
    """
    signal.setitimer(signal.ITIMER_REAL, 0)
    _handle(signal.SIG_IGN)
    if stopped:
        os._exit(STOPPED_CODE)


async def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Run work as a task and return its result; a signal cancels the task, which then cleans up.

    Raises:
        KeyboardInterrupt: A signal stopped the work.
    """
    import asyncio  # takes long

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    try:
        stop.cancel = lambda: loop.call_soon_threadsafe(task.cancel)
        stop.check()  # an earlier exception may have been swallowed
        done = await work
        stop.check()  # the work ended without another await, at which the task would be cancelled
        return done
    except asyncio.CancelledError:
        stop.check()
        raise
    finally:
        work.close()  # if it has not begun
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


def _may_be_swallowed(frame: FrameType | None) -> bool:
    """Whether a frame runs inside a `__del__` or an import."""
    while frame is not None:
        if frame.f_code.co_name == "__del__" or frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _on_swallowed(swallowed: sys.UnraisableHookArgs) -> None:
    """Tries the stop again if Python swallowed its exception, and reports other exceptions as always."""
    if stop.asked is not None and issubclass(swallowed.exc_type, KeyboardInterrupt):
        stop.try_again()
    else:
        sys.__unraisablehook__(swallowed)


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
