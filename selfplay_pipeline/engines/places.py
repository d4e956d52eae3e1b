"""Assignment of episodes to servers, and to the copies of the model on each server."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from selfplay_pipeline.engines.line import Line

REMEMBERED = 1 << 16
"""Number of episodes whose assignment is remembered; more than are played at a time."""
ELSEWHERE = "its episodes go on at the other servers"


@dataclass(eq=False)
class Place:
    """A copy of the model, with a prefix cache of its own."""

    line: Line
    rank: int
    under_way: int = 0
    """Number of requests that wait for an answer."""
    given: int = 0
    """Number of episodes that began at this copy or were moved to it."""

    @contextmanager
    def asked(self) -> Iterator[None]:
        self.under_way += 1
        try:
            yield
        finally:
            self.under_way -= 1


class Places:
    """Assignment of episodes to copies of the model. An episode stays where its prefix is cached while the server
    answers.
    """

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        for line in lines:
            line.meanwhile = partial(self._meanwhile, line)
        self._places: dict[tuple[Line, int], Place] = {}
        self._of: OrderedDict[str, Place] = OrderedDict()

    async def of(self, session: str, failed: Place | None = None) -> Place:
        """Returns the copy of the model for a seat: its episode's earlier copy, else the copy with the fewest open
        requests.

        Args:
            session: `EPISODE-SEAT`; all seats of an episode share a copy.
            failed: Copy whose request has just failed; the episode moves if another server is available.

        Raises:
            EngineError: All servers are gone, and no reconnect succeeded.
            UserError: All servers are gone, and one of them needs another key.
        """
        there = await self.there()
        there = [line for line in there if failed is None or line is not failed.line] or there
        episode = session.rpartition("-")[0] or session
        place = self._of.get(episode)
        if place is None or place.line not in there or place.rank >= place.line.ranks:
            candidates = [self._place(line, rank) for line in there for rank in range(line.ranks)]
            place = min(candidates, key=lambda place: (place.under_way, place.given))
            place.given += 1
            self._of[episode] = place
            if len(self._of) > REMEMBERED:
                self._of.popitem(last=False)
        return place

    async def there(self) -> list[Line]:
        """Returns the available servers; if there is none, waits until the first one is back.

        Raises:
            EngineError, UserError: No server came back.
        """
        while not (there := [line for line in self._lines if line.there]):
            waited = [line.returning for line in self._lines if line.returning is not None]
            if waited:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.gather(*(line.returned() for line in self._lines), return_exceptions=True)
                if not any(line.there for line in self._lines):
                    raise next(line.lost for line in self._lines if line.lost is not None)
        return there

    def _meanwhile(self, line: Line) -> str:
        return ELSEWHERE if any(other.there for other in self._lines if other is not line) else ""

    def forget(self) -> None:
        """Drop all assignments, because the prefixes are no longer cached."""
        self._of.clear()

    def _place(self, line: Line, rank: int) -> Place:
        return self._places.setdefault((line, rank), Place(line, rank))
