"""Progress of a stage: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from selfplay_pipeline.core import terminal
from selfplay_pipeline.core.command_line import announced
from selfplay_pipeline.core.terminal import say
from selfplay_pipeline.core.terminal.harmless import one_line

LOG_EVERY_SECONDS, DRAW_EVERY_SECONDS = 15.0, 0.2
_in_place = ContextVar("in_place", default=False)
"""Whether a table is drawn in place; bars below it go away when their stage ends."""


class Reporter(Protocol):
    """Told how far a stage is. `figures` is called only when they are shown: to add them up may take long."""

    def __call__(self, done: int, total: int, figures: Callable[[], str]) -> None: ...


def say_announced() -> None:
    """Something begins: say what was announced."""
    while announced:
        say(announced.pop(0))


@contextmanager
def progress(title: str, begin: str = "", *, brief: bool = False) -> Iterator[Reporter]:
    """A bar where a terminal can draw one, else a line at the start, every 15 s and at the end.

    Args:
        begin: what goes on before the first report.
        brief: for what may be over at once: in a log there is nothing to read of it in the first 15 s, and on a
            terminal nothing stays.
    """
    title = one_line(title)
    if terminal.console.is_terminal:
        say_announced()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=terminal.console, transient=brief or _in_place.get()) as bar:
            task = bar.add_task(title, total=None, figures=begin)

            def draw(done: int, total: int, figures: str) -> None:
                bar.update(task, completed=done, total=total, figures=figures)

            yield _at_most_every(DRAW_EVERY_SECONDS, draw)
        return

    def log(done: int, total: int, figures: str) -> None:
        beat.say(f"{title}: {done}/{total} {figures}".rstrip())

    now_and_then = _at_most_every(LOG_EVERY_SECONDS, log, brief=brief)

    def report(done: int, total: int, figures: Callable[[], str]) -> None:
        beat.last = time.monotonic()
        now_and_then(done, total, figures)

    with _Heartbeat(f"{title}: {begin}" if begin else title) as beat:
        yield report


@contextmanager
def without_progress(title: str) -> Iterator[Reporter]:
    """Shows nothing."""
    yield lambda done, total, figures: None


class _Heartbeat(threading.Thread):
    """Repeats the newest line of a log, with the seconds since the start, when nothing was heard for a while."""

    def __init__(self, line: str) -> None:
        super().__init__(daemon=True)
        self.line = line
        self.started = self.last = time.monotonic()
        self.over = threading.Event()

    def say(self, line: str) -> None:
        """Write a line."""
        self.line = line
        self._print(line)

    def _print(self, line: str) -> None:
        say_announced()
        self.last = time.monotonic()
        say(line)

    def run(self) -> None:
        while not self.over.wait(max(0.0, self.last + LOG_EVERY_SECONDS - time.monotonic())):
            if time.monotonic() - self.last >= LOG_EVERY_SECONDS:
                self._print(f"{self.line} … {time.monotonic() - self.started:.0f} s")

    def __enter__(self) -> _Heartbeat:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self.join()


def _at_most_every(seconds: float, show: Callable[[int, int, str], None], *, brief: bool = False) -> Reporter:
    last, shown = (time.monotonic(), False) if brief else (float("-inf"), True)

    def report(done: int, total: int, figures: Callable[[], str]) -> None:
        nonlocal last, shown
        now = time.monotonic()
        if (done >= total and shown) or now - last >= seconds:
            last, shown = now, True
            show(done, total, figures())

    return report


@contextmanager
def waiting(title: str) -> Iterator[Callable[[str], None]]:
    """For work of unknown length, such as a server that starts: shows that time passes.

    Yields a function that changes the text.
    """
    title = one_line(title)
    if not terminal.console.is_terminal:
        with _Heartbeat(title) as beat:
            beat.say(title)
            yield beat.say
        return
    say_announced()
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=terminal.console, transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda text: bar.update(task, description=one_line(text))


@contextmanager
def in_place(table: Callable[[], RenderableType]) -> Iterator[Callable[[str], None]]:
    """A table brought up to date in place on a terminal; plain lines in a log.

    Yields a function that takes what has changed or begun, in one line.
    """
    say_announced()
    if not terminal.console.is_terminal:
        yield say
        return
    token = _in_place.set(True)
    try:
        with Live(table(), console=terminal.console, transient=True) as live:
            yield lambda text: live.update(Group(table(), Text(one_line(text), style="bold")), refresh=True)
    finally:
        _in_place.reset(token)
