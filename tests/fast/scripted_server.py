"""SGLang's `/generate` on loopback, with answers that are given beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer

from selfplay_pipeline.engines.sglang_engine import SGLangEngine

T = TypeVar("T")


def answering(
    replies: Sequence[Sequence[int]],
    act: Callable[[SGLangEngine], Coroutine[Any, Any, T]],
    requests: list[Any] | None = None,
) -> T:
    """Run a coroutine of the real engine with a server that answers with these tokens, one reply a request.

    It names the reason as SGLang 0.5.12 does: `length` once `max_new_tokens` are there, whatever the last one is.

    Args:
        requests: gets the JSON of each request.
    """
    left: Iterator[Sequence[int]] = iter(replies)

    async def generate(request: web.Request) -> web.Response:
        asked = await request.json()
        if requests is not None:
            requests.append(asked)
        ids = list(next(left))
        reason = "length" if len(ids) >= asked["sampling_params"]["max_new_tokens"] else "stop"
        meta = {"output_token_logprobs": [[-0.5, token, None] for token in ids], "finish_reason": {"type": reason}}
        meta |= {"prompt_tokens": len(asked["input_ids"]), "cached_tokens": 0}
        return web.json_response({"output_ids": ids, "meta_info": meta})

    async def run() -> T:
        app = web.Application()
        app.router.add_post("/generate", generate)
        async with TestServer(app) as server:
            engine = SGLangEngine([str(server.make_url("/"))])
            try:
                return await act(engine)
            finally:
                await engine.close()

    return asyncio.run(run())
