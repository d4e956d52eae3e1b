"""A reporter that keeps what work reports."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from selfplay_pipeline.core.reporting import Reporter, Update


class Report(NamedTuple):
    """One update of a progress."""

    title: str
    done: int
    total: int
    figures: str


class Reports(Reporter):
    """Keeps every update, and hands it on."""

    def __init__(self, on_update: Callable[[Report], object] = lambda report: None) -> None:
        self.seen: list[Report] = []
        self.on_update = on_update

    @contextmanager
    def progress(self, title: str, begin: str = "", *, brief: bool = False) -> Iterator[Update]:
        """Keep all updates, however close they follow each other."""

        def update(done: int, total: int, figures: Callable[[], str] = str) -> None:
            self.seen.append(Report(title, done, total, figures()))
            self.on_update(self.seen[-1])

        yield update
