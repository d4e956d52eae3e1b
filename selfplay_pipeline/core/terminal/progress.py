"""Progress of running work as commands show it: bars and a table on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

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

from selfplay_pipeline.core import reporting, terminal
from selfplay_pipeline.core.reporting import Reporter, Update, at_most_every
from selfplay_pipeline.core.terminal.harmless import one_line

DRAW_EVERY_SECONDS = 0.2


class Bars(Reporter):
    """Draws bars on a terminal; without a terminal, only the log lines appear, which `shown` prints."""

    def __init__(self) -> None:
        self.announced: list[str] = []

    def announce(self, line: str) -> None:
        """Store a line, which `begin` prints."""
        self.announced.append(line)

    def begin(self) -> None:
        """Print the announced lines."""
        while self.announced:
            terminal.say(self.announced.pop(0))

    @contextmanager
    def progress(self, title: str, begin: str = "", *, brief: bool = False) -> Iterator[Update]:
        """Draws a bar."""
        if not terminal.console.is_terminal:
            with super().progress(title, begin, brief=brief) as update:
                yield update
            return
        self.begin()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with self._drawn(Progress(*columns, console=terminal.console, transient=brief)) as bar:
            task = bar.add_task(one_line(title), total=None, figures=begin)

            def draw(done: int, total: int, figures: str) -> None:
                bar.update(task, completed=done, total=total, figures=figures)

            yield at_most_every(DRAW_EVERY_SECONDS, draw)

    @contextmanager
    def waiting(self, title: str) -> Iterator[Callable[[str], None]]:
        """Draws a spinner."""
        if not terminal.console.is_terminal:
            with super().waiting(title) as tell:
                yield tell
            return
        self.begin()
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        with self._drawn(Progress(*columns, console=terminal.console, transient=True)) as bar:
            task = bar.add_task(one_line(title), total=None)
            yield lambda text: bar.update(task, description=one_line(text))

    def _drawn(self, bar: Progress) -> AbstractContextManager[Progress]:
        """Draws a bar while its work runs."""
        return bar


class Table(Bars):
    """Draws a table, which each status updates in place, above the bars of all running work."""

    def __init__(self, table: Callable[[], RenderableType], outer: Reporter) -> None:
        super().__init__()
        self.table = table
        self.outer = outer
        self.live: Live | None = None
        self.shown: list[RenderableType] = []
        self.bars: list[Progress] = []

    def begin(self) -> None:
        """Print the announced lines, and draw the table on a terminal."""
        self.outer.begin()  # the command has announced its lines there
        super().begin()
        if terminal.console.is_terminal and self.live is None:
            self.shown = [self.table()]
            self.live = Live(console=terminal.console, transient=True, get_renderable=self._screen)
            self.live.start()

    def status(self, line: str) -> None:
        """Updates the table and shows `line` under it; without a terminal, logs `line` instead."""
        self.begin()
        if self.live is None:
            super().status(line)
        else:
            self.shown = [self.table(), Text(one_line(line), style="bold")]
            self.live.refresh()

    def end(self) -> None:
        """Removes the table."""
        if self.live is not None:
            self.live.stop()

    def _screen(self) -> Group:
        return Group(*self.shown, *self.bars)

    @contextmanager
    def _drawn(self, bar: Progress) -> Iterator[Progress]:
        # rich's own nested displays have to end in the opposite order of their start, which side by side they do not.
        self.bars.append(bar)
        try:
            yield bar
        finally:
            if self.live is not None:
                self.live.refresh()  # the last figures of short work
            self.bars.remove(bar)


class _Lines(logging.Handler):
    """Log handler that prints each line, with control codes as visible signs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line. Errors are not caught: if stderr is closed, the command ends."""
        terminal.say(record.getMessage())


@contextmanager
def shown() -> Iterator[None]:
    """Shows the reports of the work in a block on the terminal."""
    handler, logger = _Lines(), reporting.logger
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # handlers of other libraries would print a line twice
    try:
        with reporting.use(Bars()):
            yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextmanager
def in_place(table: Callable[[], RenderableType]) -> Iterator[None]:
    """Shows a run as a table that each status updates in place on a terminal; for use within `shown`."""
    reporter = Table(table, reporting.current())
    try:
        with reporting.use(reporter):
            yield
    finally:
        reporter.end()
