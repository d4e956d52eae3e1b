"""At which of several servers, and at which copy of the model there, an episode is played. Real servers on loopback."""

import asyncio
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from aiohttp import web
from test_client import PARAMS, until
from test_shared_gpu import SGLang

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import EngineError

EPISODES, TURNS = 24, 3

pytestmark = pytest.mark.usefixtures("no_pauses")


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


async def play(engine: SGLangEngine) -> list[list[int]]:
    """Play all episodes at a time; each seat in turn sends the episode's number, its own, and that of the turn."""

    async def episode(number: int) -> list[list[int]]:
        replies = []
        for turn in range(TURNS):
            for seat in range(2):
                asking = engine.generate([number, seat, turn], PARAMS, session=f"e{number}-{seat}")
                replies.append((await asking).token_ids)
        return replies

    return [reply for replies in await asyncio.gather(*map(episode, range(EPISODES))) for reply in replies]


async def test_each_episode_stays_at_one_copy_of_the_model_and_all_have_equally_many():
    servers = Copies(2), Copies(1)
    async with await attached(*servers) as engine:
        await play(engine)
    two, one = (server.places() for server in servers)
    assert set(Counter(episode for episode, _ in [*two, *one]).values()) == {1}, "both seats, all turns"
    assert set((two + one).values()) == {2 * TURNS}
    assert Counter(rank for _, rank in two) == {0: EPISODES // 3, 1: EPISODES // 3}
    assert Counter(rank for _, rank in one) == {None: EPISODES // 3}, "SGLang warns of a rank where there is one copy"


async def test_a_server_that_does_not_say_how_many_copies_it_has_is_taken_for_one():
    async with SGLangEngine([await SGLang().start()]) as engine:  # as a gateway, it does not know the path
        await engine.find_ranks()
        assert [client.ranks for client in engine.clients] == [1]


async def test_the_episodes_of_a_server_that_dies_go_on_at_the_other_one_and_nothing_is_asked_twice():
    first, second, said = Copies(), Copies(), []
    async with await attached(first, second, said=said) as engine:
        playing = asyncio.create_task(play(engine))
        await until(lambda: len(first.answered) >= EPISODES)
        await first.die()
        assert await playing == [[9]] * (EPISODES * 2 * TURNS)
    assert first.episodes() & second.episodes(), "it died amid them"
    asked = Counter(tuple(one["input_ids"]) for one in [*first.answered, *second.answered])
    assert asked == Counter(product(range(EPISODES), range(2), range(TURNS)))
    (line,) = said
    assert "no connection" in line and "its episodes go on at the other servers; waiting up to 30 s for it" in line


async def test_a_busy_server_is_asked_again_elsewhere():
    busy, idle = Copies(), Copies()
    busy.app = web.Application()
    busy.app.router.add_post("/generate", lambda request: asyncio.sleep(0, web.Response(status=503)))
    async with await attached(busy, idle) as engine:
        assert len(await play(engine)) == EPISODES * 2 * TURNS
    assert idle.episodes() == set(range(EPISODES))


@pytest.mark.long
async def test_a_server_that_is_back_loads_what_is_to_be_served_and_is_used_again(checkpoint):
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
    assert again.model == str(checkpoint)
    assert {rank for _, rank in again.places()} == {0, 1}, "it has two copies now"
    assert again.episodes() | second.episodes() == set(range(EPISODES))
    assert (len(second.episodes()), len(said)) == (EPISODES // 3, 2)


@pytest.mark.long
async def test_where_all_are_gone_the_first_that_is_back_is_asked():
    first, second, said = Copies(), Copies(), []
    async with await attached(first, second, said=said) as engine:
        port = second.server.port
        await first.die()
        await second.die()
        playing = asyncio.create_task(play(engine))
        await until(lambda: len(said) == 2)
        again = Copies()
        await again.start(port)
        assert len(await playing) == EPISODES * 2 * TURNS
    assert again.episodes() == set(range(EPISODES))
    assert all("waiting up to 30 s" in line for line in said[:2])


@pytest.mark.long
async def test_where_all_were_waited_for_in_vain_it_is_an_error():
    servers = Copies(), Copies()
    async with await attached(*servers, patience=0.2) as engine:
        for server in servers:
            await server.die()
        with pytest.raises(EngineError, match=r"no connection .* did not come back \(engine.hang_timeout\)"):
            await play(engine)


@pytest.mark.long
async def test_weights_are_loaded_by_all_that_are_there_and_by_the_other_one_once_it_is_back(checkpoint):
    first, second, said = Copies(), Copies(), []
    async with await attached(first, second, said=said) as engine:
        port = second.server.port
        await second.die()
        await engine.reload(checkpoint)
        assert first.model == str(checkpoint)
        await play(engine)
        again = Copies()
        await again.start(port)
        await until(lambda: all(client.available for client in engine.clients))
    assert (again.model, again.weights) == (str(checkpoint), content_hash(str(checkpoint)))
    assert first.episodes() == set(range(EPISODES))
    waiting, back = said
    assert "its episodes go on at the other servers; waiting up to 30 s" in waiting and "answers again" in back


async def test_each_copy_must_answer_with_the_weights_that_were_loaded(checkpoint):
    server = Copies(3)
    async with await attached(server) as engine:
        await engine.reload(checkpoint)
    assert [one["routed_dp_rank"] for one in server.answered] == [0, 1, 2]


async def test_an_episode_begins_at_the_copy_with_the_fewest_open_requests_and_then_the_fewest_episodes():
    async with await attached(Copies(2)) as engine:
        of = engine._routing.of
        one, other = await of("a-0"), await of("b-0")
        assert one is not other and await of("a-1") is one, "both seats"
        with one.asked():
            assert await of("c-0") is other, "it has as many episodes, and no open request"
            assert await of("d-0") is other, "however many it has"
        assert await of("e-0") is one, "which has had fewer, and whose request is answered"
