"""What becomes of requests when a server dies, hangs, or comes back with something else. Real servers on loopback."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_server import answer_to

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.activity import Activity
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.http import Http, ServerGoneError
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.engines.types import EngineError, SamplingParams

PARAMS = SamplingParams(1.0, 4, (9,))

pytestmark = pytest.mark.usefixtures("no_pauses")


class Fake:
    """What a server answers: a token, after `gate` opened; its health as told."""

    def __init__(self, model: str = "m", healthy: bool = True) -> None:
        self.gate, self.healthy, self.model, self.asked, self.dead = asyncio.Event(), healthy, model, 0, False
        self.weights: str | None = None
        self.app = web.Application()
        self.app.router.add_post("/generate", self._generate)
        self.app.router.add_get("/health_generate", self._health)
        self.app.router.add_get("/model_info", self._info)

    async def _generate(self, request: web.Request) -> web.Response:
        self.asked += 1
        asked = await request.json()
        await self.gate.wait()
        if self.dead:
            request.transport.abort()
        return web.json_response(answer_to(asked, [9]))

    async def _health(self, request: web.Request) -> web.Response:
        if not self.healthy:
            await self.gate.wait()
        return web.Response()

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response({"model_path": self.model, "weight_version": self.weights})

    async def die(self) -> None:
        """Close all connections, those of requests under way too."""
        self.dead = True
        self.gate.set()
        await self.server.close()

    async def start(self, port: int = 0) -> str:
        self.server = TestServer(self.app, port=port)
        await self.server.start_server()
        return str(self.server.make_url("/")).rstrip("/")


@dataclass
class Launched:
    """Stands for a launched server: it has lives, and says whether its processes work."""

    lives: list[Fake]
    model: str = ""
    url: str = ""
    works: bool = False
    ended: int = 0
    restarts: int = 0
    ours = True
    key = ""

    async def begin(self) -> None:
        self.url = await self.lives[0].start()

    def computes(self) -> bool:
        return self.works

    async def end(self) -> None:
        self.ended += 1

    async def come_back(self, reason: str) -> None:
        if self.restarts + 1 == len(self.lives):
            raise EngineError(f"{reason}; no lives are left")
        self.restarts += 1
        await self.lives[self.restarts - 1].die()
        self.url = await self.lives[self.restarts].start()


async def ask(engine: SGLangEngine, many: int = 1):
    return await asyncio.gather(*(engine.generate([1], PARAMS, session=str(n)) for n in range(many)))


async def until(happened) -> None:
    while not happened():
        await asyncio.sleep(0.01)


async def launched(first: Fake, *later: Fake, **how) -> Launched:
    """A server whose later lives answer."""
    for fake in later:
        fake.gate.set()
    server = Launched([first, *later], **how)
    await server.begin()
    return server


async def test_many_requests_of_a_server_that_dies_start_it_again_once_and_all_are_answered():
    server = await launched(Fake(), Fake())
    async with SGLangEngine([server]) as engine:
        asking = asyncio.create_task(ask(engine, 20))
        await until(lambda: server.lives[0].asked == 20)
        await server.lives[0].die()
        assert [done.token_ids for done in await asking] == [[9]] * 20
    assert server.restarts == 1


@pytest.mark.parametrize("again", [False, True])
async def test_an_error_of_an_earlier_life_starts_nothing_again_however_late_it_comes(again, monkeypatch):
    """Errors of one life may reach the line before the server is back, and long after it is."""
    send, held = Http.send, asyncio.Event()

    async def late(self, url, body=None, headers=None, **given):
        try:
            return await send(self, url, body, headers, **given)
        except ServerGoneError:
            if (body or {}).get("input_ids") == [2]:
                await held.wait()
            raise

    monkeypatch.setattr(Http, "send", late)
    server = await launched(Fake(), Fake(), Fake())
    async with SGLangEngine([server]) as engine:
        asking = [asyncio.create_task(engine.generate([n], PARAMS, session=str(n))) for n in (1, 2)]
        await until(lambda: server.lives[0].asked == 2)
        await server.lives[0].die()
        await asking[0]
        assert server.restarts == 1
        held.set()
        if again:
            await ask(engine, 3)
        assert (await asking[1]).token_ids == [9]
    assert server.restarts == 1


async def test_without_lives_all_of_them_fail_with_the_reason():
    server = await launched(Fake())
    async with SGLangEngine([server]) as engine:
        asking = asyncio.create_task(ask(engine))
        await until(lambda: server.lives[0].asked)
        await server.lives[0].die()
        with pytest.raises(EngineError, match=r"/generate: no connection .*; no lives are left"):
            await asking


@pytest.mark.long
async def test_a_server_that_hangs_is_ended_started_again_and_asked_again():
    server, said = await launched(Fake(healthy=False), Fake()), []
    async with SGLangEngine([server], hang_timeout=1, tell=said.append) as engine:
        assert len(await ask(engine, 3)) == 3
    assert (server.ended, server.restarts, len(said)) == (1, 1, 1)
    assert "hangs: no sign of life" in said[0]


@pytest.mark.long
@pytest.mark.parametrize("sign", ["health check", "work of its processes"])
async def test_a_busy_server_is_left_alone_while_it_shows_a_sign_of_life(sign):
    server = await launched(Fake(healthy=sign == "health check"), works=sign != "health check")
    async with SGLangEngine([server], hang_timeout=1) as engine:
        asking = asyncio.create_task(ask(engine))
        await asyncio.sleep(2.5)
        server.lives[0].gate.set()
        await asking
    assert server.ended == 0


@pytest.mark.long
async def test_an_attached_server_that_comes_back_in_time_is_asked_again():
    first, second, said = Fake(), Fake(), []
    second.gate.set()
    server = AttachedServer(await first.start(), model="m", patience=30, tell=said.append)
    async with SGLangEngine([server]) as engine:
        asking = asyncio.create_task(ask(engine, 3))
        await until(lambda: first.asked == 3)
        port = first.server.port
        await first.die()
        await until(lambda: said)
        await second.start(port)
        assert len(await asking) == 3
    assert "waiting up to 30 s" in said[0] and "answers again" in said[1]


async def test_an_attached_server_that_comes_back_with_another_model_is_not_asked():
    first, second = Fake(), Fake(model="other")
    server = AttachedServer(await first.start(), model="m", patience=30, tell=[].append)
    async with SGLangEngine([server], attempts=2) as engine:
        asking = asyncio.create_task(ask(engine))
        await until(lambda: first.asked)
        port = first.server.port
        await first.die()
        await second.start(port)
        with pytest.raises(UserError, match="serves other, not m"):
            await asking


@pytest.mark.long
async def test_an_attached_server_is_waited_for_once_and_then_only_looked_for():
    gone, said = Fake(), []
    server = AttachedServer(await gone.start(), patience=0.1, tell=said.append)
    await gone.die()
    async with SGLangEngine([server]) as engine:
        for _ in range(3):
            with pytest.raises(EngineError, match="did not come back"):
                await ask(engine)
    assert len(said) == 1


class Stub(ServerSpec):
    """Launches a process that answers `/health`, or one that does nothing at all."""

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.model.replace("PORT", str(port))]


ANSWERS = """
import http.server
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", PORT), Answer).serve_forever()
"""


@pytest.mark.long
async def test_a_launched_server_that_is_killed_is_started_again_as_often_as_allowed(tmp_path):
    said: list[str] = []
    async with SGLangServer(Stub(ANSWERS, "cpu", tmp_path / "log"), max_restarts=1, tell=said.append) as server:
        await server.come_back("a hiccup")
        assert not said, "it answered"
        os.kill(server.child.pid, signal.SIGKILL)
        server.child.wait(300)
        await server.come_back("dead")
        assert server.running
        os.kill(server.child.pid, signal.SIGKILL)
        server.child.wait(300)
        with pytest.raises(EngineError, match=r"has ended with code -9.*started again 1 times"):
            await server.come_back("dead")
    assert "has ended with code -9" in said[0] and "(1 of 1)" in said[0]
    assert len(said) == 2


TAKES_ONCE = """
import os, sys
if not os.path.exists("LOG.taken"):
    open("LOG.taken", "w").close()
    sys.exit("OSError: [Errno 98] error while attempting to bind: address already in use")
"""


@pytest.mark.long
async def test_a_server_that_finds_a_port_taken_is_started_again_on_another(tmp_path):
    said, log = [], tmp_path / "log"

    async def start(model: str, max_restarts: int) -> None:
        spec = Stub(model.replace("LOG", str(log)), "cpu", log)
        async with SGLangServer(spec, max_restarts=max_restarts, tell=said.append) as server:
            assert server.running and server.port

    await start(TAKES_ONCE + ANSWERS, 1)
    again, answers = said
    assert f"ended with code 1 while starting (Address already in use); see {log}; starting it again with" in again
    assert "(1 of 1)" in again and "answers again" in answers
    with pytest.raises(EngineError, match="while starting; see"):
        # The words that the first start has left in the log are no reason for a second one.
        await start("raise SystemExit('no such model')", 1)
    assert len(said) == 2
    with pytest.raises(EngineError, match="Address already in use"):
        await start("raise SystemExit('Address already in use')", 0)


@pytest.mark.long
async def test_a_server_that_does_nothing_while_it_starts_hangs(tmp_path):
    spec = Stub("import time; time.sleep(300)", "cpu", tmp_path / "log")
    with pytest.raises(EngineError, match="hangs while starting"):
        async with SGLangServer(spec, hang_timeout=0.3, max_restarts=1, tell=[].append):
            pass


def looks() -> Iterator[None]:
    """As many as a busy machine needs: a process that begins works for a moment."""
    for _ in range(100):
        time.sleep(0.05)
        yield


def test_a_process_works_sleeps_or_is_stopped():
    done = threading.Event()
    worker = threading.Thread(target=lambda: [sum(range(10_000)) for _ in iter(done.is_set, True)])
    mine = Activity(os.getpid())
    worker.start()
    assert any(mine.working() for _ in looks())
    done.set()
    worker.join()
    pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "300")
    try:
        sleeper = Activity(pid)
        assert any(not sleeper.working() for _ in looks())
        os.kill(pid, signal.SIGSTOP)
        assert any(not mine.working() for _ in looks()), "one of its children is stopped"
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
