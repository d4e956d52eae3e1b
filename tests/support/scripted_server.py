"""SGLang's `/generate` on loopback, with answers that are given beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from aiohttp import web
from aiohttp.test_utils import TestServer
from factories import POLICY

from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.games.base import state_rng
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.generate.episode import Episode
from selfplay_pipeline.generate.players import policy_player
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answer_to(asked: dict[str, Any], ids: Sequence[int]) -> dict[str, Any]:
    """What SGLang 0.5.12 answers when it samples these tokens.

    It names the reason `length` once `max_new_tokens` are there, whatever the last one is.
    """
    reason = "length" if len(ids) >= asked["sampling_params"]["max_new_tokens"] else "stop"
    meta = {"output_token_logprobs": [[-0.5, token, None] for token in ids], "finish_reason": {"type": reason}}
    meta |= {"prompt_tokens": len(asked["input_ids"]), "cached_tokens": 0}
    return {"output_ids": list(ids), "meta_info": meta}


def serving(handlers: dict[str, Handler], act: Callable[[str], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine with the address of a server that answers each path so."""

    async def run() -> T:
        app = web.Application()
        for path, handler in handlers.items():
            app.router.add_route("*", path, handler)
        async with TestServer(app) as server:
            return await act(str(server.make_url("/")).rstrip("/"))

    return asyncio.run(run())


def answering(
    replies: Sequence[Sequence[int]],
    act: Callable[[SGLangEngine], Coroutine[Any, Any, T]],
    requests: list[Any] | None = None,
) -> T:
    """Run a coroutine of the real engine with a server that answers with these tokens, one reply a request.

    Args:
        requests: gets the JSON of each request.
    """
    left: Iterator[Sequence[int]] = iter(replies)

    async def generate(request: web.Request) -> web.Response:
        asked = await request.json()
        if requests is not None:
            requests.append(asked)
        return web.json_response(answer_to(asked, next(left)))

    async def run(url: str) -> T:
        async with SGLangEngine([url]) as engine:
            return await act(engine)

    return serving({"/generate": generate}, run)


def played(chat: ChatTokenizer, replies: Sequence[list[int]], config: MatchingConfig, limit: int) -> EpisodeRecord:
    """An episode of a policy in both seats that is answered so, as far as a turn's limit of tokens allows."""
    game, policy = MatchingGame(config), POLICY.model_copy(update={"max_new_tokens": limit})

    async def act(engine: SGLangEngine) -> EpisodeRecord:
        me = policy_player(engine, chat, policy, 100_000)
        seated = Episode(game, game.sample_state(state_rng(0, 0)), [me, me], "g", (0, 0, 0))
        await seated.run()
        return seated.record(policy)

    return answering([reply[:limit] for reply in replies], act)
