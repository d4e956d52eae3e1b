"""Reports of running work. Stages call these functions and print nothing themselves.

Lines go to the logger `selfplay_pipeline`. Progress goes to the `Reporter` of the context, which writes a line now and
then; a program that draws bars installs its own reporter with `use`. Nothing is printed until a handler is installed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

LOG_EVERY_SECONDS = 15.0
logger = logging.getLogger("selfplay_pipeline")
"""Logger of every line that a stage reports."""
logger.addHandler(logging.NullHandler())  # else Python prints warnings if no handler is installed


class Update(Protocol):
    """Callback for the progress of work. `figures` is called only for a report that is shown, as it may be slow."""

    def __call__(self, done: int, total: int, figures: Callable[[], str] = str) -> None: ...


class Reporter:
    """Writes the progress of work to the log: a line at the start, every 15 s, and at the end."""

    def announce(self, line: str) -> None:
        """Takes a line to show when work begins; if the work is refused first, only the reason is shown."""

    def begin(self) -> None:
        """Notes that work begins, after all checks have passed."""

    def status(self, line: str) -> None:
        """Takes a line about a stage of the run that has begun or finished."""
        logger.info(line)

    @contextmanager
    def progress(self, title: str, begin: str = "", *, brief: bool = False) -> Iterator[Update]:
        """Reports work of known length; for the arguments see the function `progress`."""
        if not logger.isEnabledFor(logging.INFO):
            yield lambda done, total, figures=str: None
            return
        with _Heartbeat(self, f"{title}: {begin}" if begin else title) as beat:

            def log(done: int, total: int, figures: str) -> None:
                beat.log(f"{title}: {done}/{total} {figures}".rstrip())

            now_and_then = at_most_every(LOG_EVERY_SECONDS, log, brief=brief)

            def update(done: int, total: int, figures: Callable[[], str] = str) -> None:
                beat.last = time.monotonic()
                now_and_then(done, total, figures)

            yield update

    @contextmanager
    def waiting(self, title: str) -> Iterator[Callable[[str], None]]:
        """Reports work of unknown length; for the argument see the function `waiting`."""
        if not logger.isEnabledFor(logging.INFO):
            yield lambda text: None
            return
        with _Heartbeat(self, title) as beat:
            beat.log(title)
            yield beat.log


_reporter: ContextVar[Reporter] = ContextVar("reporter", default=Reporter())  # noqa: B039 - it holds no state


@contextmanager
def use(reporter: Reporter) -> Iterator[None]:
    """Installs a reporter for the work of a block, and for the tasks that begin in it."""
    token = _reporter.set(reporter)
    try:
        yield
    finally:
        _reporter.reset(token)


def current() -> Reporter:
    """Returns the reporter of the context."""
    return _reporter.get()


def announce(line: str) -> None:
    """Reports a line once work begins, and never if it does not begin."""
    _reporter.get().announce(line)


def begin() -> None:
    """Reports that work begins, after all checks have passed."""
    _reporter.get().begin()


def status(line: str) -> None:
    """Reports, in one line, a stage of a run that has begun or finished."""
    _reporter.get().status(line)


def progress(title: str, begin: str = "", *, brief: bool = False) -> AbstractContextManager[Update]:
    """Reports work of known length.

    Args:
        begin: Text in place of figures before the first update.
        brief: Whether the work may be short: nothing is logged in its first 15 s, and its bar disappears at the end.
    """
    return _reporter.get().progress(title, begin, brief=brief)


def waiting(title: str) -> AbstractContextManager[Callable[[str], None]]:
    """Reports work of unknown length, such as the start of a server.

    Yields:
        Function that changes the text.
    """
    return _reporter.get().waiting(title)


def at_most_every(seconds: float, show: Callable[[int, int, str], None], *, brief: bool = False) -> Update:
    """Returns a callback that shows the first report, the last report, and one report per `seconds` in between.

    Args:
        brief: Whether the first report must wait for `seconds`; the last report is then shown only if an earlier one
            was.
    """
    last, shown = (time.monotonic(), False) if brief else (float("-inf"), True)

    def update(done: int, total: int, figures: Callable[[], str] = str) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if (done == total and shown) or now - last >= seconds:
            last, shown = now, True
            show(done, total, figures())

    return update


class _Heartbeat(threading.Thread):
    """Repeats the newest line, with the seconds since the start, if nothing was logged for a while."""

    def __init__(self, reporter: Reporter, line: str) -> None:
        super().__init__(daemon=True)
        self.reporter, self.line = reporter, line
        self.started = self.last = time.monotonic()
        self.over = threading.Event()

    def log(self, line: str) -> None:
        """Write a line."""
        self.line = line
        self._write(line)

    def _write(self, line: str) -> None:
        self.reporter.begin()
        self.last = time.monotonic()
        logger.info(line)

    def run(self) -> None:
        while not self.over.wait(max(0.0, self.last + LOG_EVERY_SECONDS - time.monotonic())):
            if time.monotonic() - self.last >= LOG_EVERY_SECONDS:
                self._write(f"{self.line} … {time.monotonic() - self.started:.0f} s")

    def __enter__(self) -> _Heartbeat:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()
