"""Connections of the web server: how many there may be, and how long one may stay without a whole request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from selfplay_pipeline.core.processes import allow_open_files

IDLE_SECONDS = 30.0
"""Seconds within which the headers of the next request must arrive, and an answer must be read."""
MOST_CONNECTIONS = 1000
"""Largest number of connections; half of the files that the process may open if that is less."""
SILENT = logging.getLogger(f"{__name__}.silent")
"""Logger of aiohttp's server, which would print a traceback and the address for each request that is not HTTP."""
SILENT.setLevel(logging.CRITICAL + 1)


class _Refused(asyncio.Protocol):
    """A connection that is closed at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


class _Connections:
    """Connections of one server. One whose request is being answered is busy; any other is idle.

    A busy one whose body has not arrived yet makes room too, so that slow bodies shut nobody out.
    """

    def __init__(
        self, server: web.Server, busy: dict[web.RequestHandler, web.Request], most: int, idle_seconds: float
    ) -> None:
        self._server, self._busy, self._most, self._idle_seconds = server, busy, most, idle_seconds
        self._idle_since: dict[web.RequestHandler, float] = {}

    def accept(self) -> asyncio.Protocol:
        """Returns the protocol of a new connection; if there are too many, the one that is idle longest is closed."""
        held = [one for one in self._server.connections if one.transport is not None]
        if len(held) >= self._most:
            waits_for_us = {one for one, request in self._busy.items() if request.content.is_eof()}
            idle = [one for one in held if one not in waits_for_us]
            if not idle:
                return _Refused()
            min(idle, key=lambda one: self._idle_since.get(one, float("inf"))).force_close()
        return self._server()

    async def close_idle(self) -> None:
        """Close connections that are idle for too long, until cancelled."""
        now = asyncio.get_running_loop().time
        while True:
            idle = [one for one in self._server.connections if one not in self._busy]
            self._idle_since = {one: self._idle_since.get(one, now()) for one in idle}
            for one, since in self._idle_since.items():
                if now() - since > self._idle_seconds:
                    one.force_close()
            await asyncio.sleep(min(1.0, self._idle_seconds / 4))


@asynccontextmanager
async def listening(
    app: web.Application, host: str, port: int, *, idle_seconds: float = IDLE_SECONDS, most: int = MOST_CONNECTIONS
) -> AsyncIterator[None]:
    """Serve an application for the duration of a block.

    Raises:
        OSError: The address cannot be used.
    """
    busy = dict[web.RequestHandler, web.Request]()

    @web.middleware
    async def mark(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        busy[request.protocol] = request
        try:
            return await handler(request)
        finally:
            busy.pop(request.protocol, None)

    app.middlewares.insert(0, mark)
    # A body is not decompressed, because a small one can need much memory; the pages refuse it.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, auto_decompress=False, logger=SILENT)
    await runner.setup()
    try:
        assert runner.server is not None
        most = min(most, allow_open_files() // 2)
        connections = _Connections(runner.server, busy, most, idle_seconds)
        # asyncio accepts up to `backlog` connections before any of them is closed.
        server = await asyncio.get_running_loop().create_server(
            connections.accept, host, port, backlog=min(128, most // 8)
        )
        closing = asyncio.create_task(connections.close_idle())
        try:
            yield
        finally:
            closing.cancel()
            server.close()
    finally:
        await runner.cleanup()
