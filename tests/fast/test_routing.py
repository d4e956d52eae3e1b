"""At which of several servers, and at which copy of the model there, an episode is played. Real servers on loopback."""

import asyncio
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from aiohttp import web
from tenacity import wait_none
from test_client import PARAMS, until
from test_shared_gpu import SGLang

from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.engines import client
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import EngineError

EPISODES, TURNS = 24, 3


@pytest.fixture(autouse=True)
def _no_pauses_between_tries(monkeypatch):
    monkeypatch.setattr(client, "wait_exponential_jitter", lambda **given: wait_none())


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    (tmp_path / "model.safetensors").touch()
    return tmp_path


class Copies(SGLang):
    """A server with so many copies of the model, which notes what it was asked and answered."""

    def __init__(self, copies: int = 1, model: str = "m") -> None:
        super().__init__()
        self.copies, self.answered, self.model = copies, [], model
        self.app.router.add_get("/server_info", self._about)

    async def _generate(self, request: web.Request) -> web.Response:
        if self.dead:
            request.transport.abort()
        asked = await request.json()
        await self.gate.wait()
        answer = await super()._generate(request)
        self.answered.append(asked)
        return answer

    async def _about(self, request: web.Request) -> web.Response:
        return web.json_response({"dp_size": self.copies, "version": "0.5.12"})

    def places(self) -> Counter[tuple[int, int | None]]:
        """How often for which episode at which copy; `play` sends the episode's number."""
        return Counter((one["input_ids"][0], one.get("routed_dp_rank")) for one in self.answered)

    def episodes(self) -> set[int]:
        return {episode for episode, _ in self.places()}


async def attached(*servers: Copies, patience: float = 30, said: list[str] | None = None) -> SGLangEngine:
    """An engine as `--server-url` makes it."""
    tell = [].append if said is None else said.append
    known = [AttachedServer(await server.start(), model="m", patience=patience, tell=tell) for server in servers]
    engine = SGLangEngine(known, tell=tell)
    await engine.find_ranks()
    return engine


async def play(engine: SGLangEngine, turns: int = TURNS) -> list[list[int]]:
    """Play all episodes at a time; each seat in turn sends the episode's number, its own, and that of the turn."""

    async def episode(number: int) -> list[list[int]]:
        replies = []
        for turn in range(turns):
            for seat in range(2):
                asking = engine.generate([number, seat, turn], PARAMS, session=f"e{number}-{seat}")
                replies.append((await asking).token_ids)
        return replies

    return [reply for replies in await asyncio.gather(*map(episode, range(EPISODES))) for reply in replies]


def test_each_episode_stays_at_one_copy_of_the_model_and_all_have_equally_many():
    async def run():
        servers = Copies(2), Copies(1)
        async with await attached(*servers) as engine:
            await play(engine)
        return [server.places() for server in servers]

    two, one = asyncio.run(run())
    assert set(Counter(episode for episode, _ in [*two, *one]).values()) == {1}, "both seats, all turns"
    assert set((two + one).values()) == {2 * TURNS}
    assert Counter(rank for _, rank in two) == {0: EPISODES // 3, 1: EPISODES // 3}
    assert Counter(rank for _, rank in one) == {None: EPISODES // 3}, "SGLang warns of a rank where there is one copy"


def test_a_server_that_does_not_say_how_many_copies_it_has_is_taken_for_one():
    async def run():
        server = SGLang()  # as a gateway, it does not know the path
        async with SGLangEngine([await server.start()]) as engine:
            await engine.find_ranks()
            return [client.ranks for client in engine.clients]

    assert asyncio.run(run()) == [1]


def test_the_episodes_of_a_server_that_dies_go_on_at_the_other_one_and_nothing_is_asked_twice():
    async def run():
        first, second, said = Copies(), Copies(), []
        async with await attached(first, second, said=said) as engine:
            playing = asyncio.create_task(play(engine))
            await until(lambda: len(first.answered) >= EPISODES)
            await first.die()
            return await playing, first, second, said

    replies, first, second, said = asyncio.run(run())
    assert replies == [[9]] * (EPISODES * 2 * TURNS)
    assert first.episodes() & second.episodes(), "it died amid them"
    asked = Counter(tuple(one["input_ids"]) for one in [*first.answered, *second.answered])
    assert asked == Counter(product(range(EPISODES), range(2), range(TURNS)))
    (line,) = said
    assert "no connection" in line and "its episodes go on at the other servers; waiting up to 30 s for it" in line


def test_a_busy_server_is_asked_again_elsewhere():
    async def run():
        busy, idle = Copies(), Copies()

        async def refuse(request: web.Request) -> web.Response:
            return web.Response(status=503)

        busy._generate = refuse
        busy.app = web.Application()
        busy.app.router.add_post("/generate", refuse)
        async with await attached(busy, idle) as engine:
            return await play(engine), idle.episodes()

    replies, episodes = asyncio.run(run())
    assert len(replies) == EPISODES * 2 * TURNS
    assert episodes == set(range(EPISODES))


def test_a_server_that_is_back_loads_what_is_to_be_served_and_is_used_again(checkpoint):
    async def run():
        first, second, said = Copies(), Copies(), []
        async with await attached(first, second, said=said) as engine:
            await engine.reload(checkpoint)
            port = first.server.port
            await first.die()
            await play(engine)
            again = Copies(copies=2, model="what it was started with")
            await again.start(port)
            await until(lambda: any("answers again" in line for line in said))
            await until(lambda: all(client.available for client in engine.clients))
            second.answered.clear()
            again.answered.clear()
            engine._routing.forget()
            await play(engine)
            return again, second, said

    again, second, said = asyncio.run(run())
    assert again.model == str(checkpoint)
    assert {rank for _, rank in again.places()} == {0, 1}, "it has two copies now"
    assert again.episodes() | second.episodes() == set(range(EPISODES))
    assert len(second.episodes()) == EPISODES // 3
    assert len(said) == 2


def test_where_all_are_gone_the_first_that_is_back_is_asked():
    async def run():
        first, second, said = Copies(), Copies(), []
        async with await attached(first, second, said=said) as engine:
            port = second.server.port
            await first.die()
            await second.die()
            playing = asyncio.create_task(play(engine))
            await until(lambda: len(said) == 2)
            again = Copies()
            await again.start(port)
            return len(await playing), again.episodes(), said

    replies, episodes, said = asyncio.run(run())
    assert replies == EPISODES * 2 * TURNS
    assert episodes == set(range(EPISODES))
    assert all("waiting up to 30 s" in line for line in said[:2])


def test_where_all_were_waited_for_in_vain_it_is_an_error():
    async def run():
        servers = Copies(), Copies()
        async with await attached(*servers, patience=0.2) as engine:
            for server in servers:
                await server.die()
            await play(engine)

    with pytest.raises(EngineError, match=r"no connection .* did not come back \(engine.reconnect_timeout\)"):
        asyncio.run(run())


def test_weights_are_loaded_by_all_that_are_there_and_by_the_other_one_once_it_is_back(checkpoint):
    async def run():
        first, second, said = Copies(), Copies(), []
        async with await attached(first, second, said=said) as engine:
            port = second.server.port
            await second.die()
            await engine.reload(checkpoint)
            loaded = first.model
            await play(engine)
            again = Copies()
            await again.start(port)
            await until(lambda: all(client.available for client in engine.clients))
            return loaded, first.episodes(), again, said

    loaded, episodes, again, said = asyncio.run(run())
    assert loaded == again.model == str(checkpoint)
    assert again.weights == content_hash(str(checkpoint))
    assert episodes == {0, *range(EPISODES)}
    assert "its episodes go on at the other servers; waiting up to 30 s" in said[0]
    assert "answers again" in said[1]
    assert len(said) == 2


def test_each_copy_must_answer_with_the_weights_that_were_loaded(checkpoint):
    async def run():
        server = Copies(3)
        async with await attached(server) as engine:
            await engine.reload(checkpoint)
        return [one["routed_dp_rank"] for one in server.answered]

    assert asyncio.run(run()) == [0, 1, 2]
