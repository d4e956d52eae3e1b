"""A server with SGLang's interface that always gives the same answer, or misbehaves as a fault prescribes."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from functools import cache
from types import TracebackType
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer

from chaos.outside import MODEL
from selfplay_pipeline.core.loopback import hold_port, port_of

TEXT = "[message] Ava BLEU 0"
Answer = dict[str, Any]
Fault = Callable[[web.Request, int, Answer], Awaitable[web.StreamResponse]]
"""Function that answers a request to `/generate`, given its number from 1 and the honest answer."""


_SILENT = logging.getLogger("chaos.silent")
_SILENT.disabled = True


@cache
def reply() -> list[int]:
    """Returns the token ids of the server's only answer, with the token that ends a turn."""
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    return [*tokenizer.encode(TEXT, add_special_tokens=False).ids, tokenizer.token_to_id("<|im_end|>")]


async def honest(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    """Answer honestly: the absence of a fault."""
    return web.json_response(answer)


class FakeServer:
    """Server in a thread of its own on loopback, from `start` to `stop`, always on one port."""

    def __init__(self, fault: Fault = honest, info: Fault = honest) -> None:
        """Create the server.

        Args:
            fault: Function that answers requests for tokens.
            info: Function that answers requests for the name of the served model.
        """
        self.fault, self.info = fault, info
        self.requests = 0
        self.model, self.version = str(MODEL), "first"
        self._holder = hold_port()
        self.port = port_of(self._holder)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start to listen; returns once the server listens."""
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        ready.wait(30)

    def stop(self) -> None:
        """Stop as a crash would: all connections are cut at once."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(30)
            self._loop = self._thread = None

    def when_asked(self, number: int, limit: float = 120) -> bool:
        """Wait for a number of requests; returns False if they did not come in time."""
        deadline = time.monotonic() + limit
        while self.requests < number and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.requests >= number

    def __enter__(self) -> FakeServer:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _serve(self, ready: threading.Event) -> None:
        loop = self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        runner = web.AppRunner(self._app(), access_log=None, logger=_SILENT)
        loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", self.port, shutdown_timeout=0, reuse_address=True)
        loop.run_until_complete(site.start())
        ready.set()
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_post("/update_weights_from_disk", self._update)
        app.router.add_route("*", "/{anything:.*}", self._yes)
        return app

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        self.requests += 1
        ids = reply()[: asked["sampling_params"]["max_new_tokens"]]
        reason = {"type": "stop", "matched": ids[-1]} if ids == reply() else {"type": "length", "length": len(ids)}
        meta = {
            "output_token_logprobs": [[-0.5, token, None] for token in ids],
            "finish_reason": reason,
            "prompt_tokens": len(asked["input_ids"]),
            "completion_tokens": len(ids),
            "cached_tokens": 0,
            "weight_version": self.version,
        }
        return await self.fault(request, self.requests, {"text": TEXT, "output_ids": ids, "meta_info": meta})

    async def _model_info(self, request: web.Request) -> web.StreamResponse:
        return await self.info(request, 0, {"model_path": self.model, "weight_version": self.version})

    async def _update(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.model, self.version = asked["model_path"], asked.get("weight_version", self.version)
        return web.json_response({"success": True, "message": "done"})

    async def _yes(self, request: web.Request) -> web.Response:
        return web.json_response({"success": True})


async def reset(request: web.Request) -> web.StreamResponse:
    """Cut the connection with a reset instead of an answer."""
    transport = request.transport
    assert transport is not None
    connection = transport.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()
    return web.Response()
