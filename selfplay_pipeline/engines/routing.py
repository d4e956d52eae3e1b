"""Assignment of episodes to servers, and to the copies of the model on each server."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from selfplay_pipeline.engines.client import Client

REMEMBERED = 1 << 16
"""Number of remembered assignments of episodes, more than there are concurrent episodes."""
ELSEWHERE = "its episodes go on at the other servers"


@dataclass(eq=False)
class Copy:
    """A copy of the model, with a prefix cache of its own."""

    client: Client
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


class Routing:
    """Assignment of episodes to copies of the model.

    An episode keeps its copy, which caches its prefix, as long as that copy's server answers.
    """

    def __init__(self, clients: Sequence[Client]) -> None:
        self._clients = clients
        for client in clients:
            client.meanwhile = partial(self._meanwhile, client)
        self._copies: dict[tuple[Client, int], Copy] = {}
        self._of: OrderedDict[str, Copy] = OrderedDict()

    async def of(self, session: str, failed: Copy | None = None) -> Copy:
        """Returns the copy of the model for a seat: its episode's earlier copy, else the copy with the fewest open
        requests.

        Args:
            session: `EPISODE-SEAT`; all seats of an episode share a copy.
            failed: Copy whose request has just failed; the episode moves if another server is available.

        Raises:
            EngineError: All servers are gone, and no reconnect succeeded.
            UserError: All servers are gone, and one of them needs another key.
        """
        available = await self.available()
        available = [client for client in available if failed is None or client is not failed.client] or available
        episode = session.rpartition("-")[0] or session
        copy = self._of.get(episode)
        if copy is None or copy.client not in available or copy.rank >= copy.client.ranks:
            candidates = [self._copy(client, rank) for client in available for rank in range(client.ranks)]
            copy = min(candidates, key=lambda copy: (copy.under_way, copy.given))
            copy.given += 1
            self._of[episode] = copy
            if len(self._of) > REMEMBERED:
                self._of.popitem(last=False)
        return copy

    async def available(self) -> list[Client]:
        """Returns the available servers; if none is available, waits until the first one is back.

        Raises:
            EngineError, UserError: No server came back.
        """
        while not (available := [client for client in self._clients if client.available]):
            waited = [client.returning for client in self._clients if client.returning is not None]
            if waited:
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.gather(*(client.returned() for client in self._clients), return_exceptions=True)
                if not any(client.available for client in self._clients):
                    raise next(client.lost for client in self._clients if client.lost is not None)
        return available

    def _meanwhile(self, client: Client) -> str:
        return ELSEWHERE if any(other.available for other in self._clients if other is not client) else ""

    def forget(self) -> None:
        """Drop all assignments, because the prefixes are no longer cached."""
        self._of.clear()

    def _copy(self, client: Client, rank: int) -> Copy:
        return self._copies.setdefault((client, rank), Copy(client, rank))
