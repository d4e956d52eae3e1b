"""A proxy in front of the real server that writes down what the engine was given and what it returned."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import aiohttp
from aiohttp import web

from selfplay_pipeline.core.loopback import hold_port, port_of


class RecordingProxy:
    """Forwards every request to `target`; keeps each `/generate` exchange in `exchanges`, in order of completion.

    The port stays reserved after the end, so that another proxy can be started there.
    """

    def __init__(self, target: str, port: int = 0) -> None:
        self.target = target
        self._holder = None if port else hold_port()
        self.port = port or port_of(self._holder)
        self.exchanges: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> RecordingProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(300)
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(300)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)

    async def _start(self) -> None:
        self._http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self.url = f"http://127.0.0.1:{self.port}"

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _forward(self, request: web.Request) -> web.Response:
        body = await request.read()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/json")}
        async with self._http.request(
            request.method, self.target + str(request.rel_url), data=body, headers=headers
        ) as answer:
            data = await answer.read()
            self.paths.append(request.path)
            if request.path == "/generate" and answer.status == 200:
                exchange = {"request": await request.json(), "response": await answer.json()}
                self.exchanges.append(exchange | {"headers": dict(request.headers)})
            return web.Response(body=data, status=answer.status, content_type=answer.content_type)
