"""An OpenAI-compatible chat endpoint on loopback, in a thread, that misbehaves as told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], web.Response]


def says(text: str | None, *, reason: str | None = "stop", tokens: tuple[int, int] = (100, 10)) -> Answer:
    """A chat completion, well-formed whatever it says."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
    return body({"choices": [choice], "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}})


def body(data: Any, status: int = 200, **headers: str) -> Answer:
    """Any JSON."""
    return lambda request: web.json_response(data, status=status, headers=headers)


def page(text: str, status: int = 200, content_type: str = "text/html") -> Answer:
    """Anything else."""
    return lambda request: web.Response(text=text, status=status, content_type=content_type)


def fails(status: int, message: str = "on purpose", code: str | None = None, **headers: str) -> Answer:
    """An error as OpenAI's API words it; `Retry_After` becomes a header."""
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    return body({"error": {"message": message, "type": "error", "code": code}}, status, **headers)


def echoes_its_key(status: int) -> Answer:
    """An error that holds what the client sent, key and all, in its body and in a header."""

    def answer(request: web.Request) -> web.Response:
        sent = request.headers["Authorization"]
        error = {"error": {"message": f"bad credentials: {sent}", "code": sent}}
        return web.json_response(error, status=status, headers={"X-You-Sent": sent})

    return answer


@dataclass
class ChatEndpoint:
    """A running server. It follows `script`, one answer a request, and then plays a simple game of its own.

    Attributes:
        delay: seconds that every answer takes.
        requests: the JSON of every request.
        times: when each came, in seconds.
        most: the largest number of requests under way at once.
    """

    script: list[Answer] = field(default_factory=list)
    delay: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    under_way: int = 0
    most: int = 0
    url: str = ""

    def __enter__(self) -> ChatEndpoint:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, *error: object) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _answer(self, request: web.Request) -> web.Response:
        self.times.append(time.monotonic())
        self.keys.append(request.headers["Authorization"].removeprefix("Bearer "))
        self.requests.append(await request.json())
        answer = self.script.pop(0) if self.script else episodes(self.requests[-1])
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.delay)
            return await answer(request) if asyncio.iscoroutinefunction(answer) else answer(request)
        finally:
            self.under_way -= 1


def episodes(request: dict[str, Any]) -> Answer:
    """A partner that listens and accepts."""
    return says("[accept]" if "[propose]" in request["messages"][-1]["content"] else "[message] I am listening.")
