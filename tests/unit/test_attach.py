"""An attached server answers with the weights of the checkpoint that shall be served, or the command says so."""

import asyncio
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import web
from test_client import PARAMS, Launched, until
from test_shared_gpu import SGLang

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines import server_lock
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.server_lock import ServerLock, ServerLocks
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec
from selfplay_pipeline.engines.types import EngineError

URL = "http://127.0.0.1:29999"
EPISODES = 64

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    return model_in(tmp_path / "model", b"first")


def model_in(folder: Path, weights: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(weights)
    return folder


async def attached(server: SGLang, said: list[str] | None = None) -> SGLangEngine:
    url = await server.start()
    tell = [].append if said is None else said.append
    return SGLangEngine([AttachedServer(url, tell=tell)], locks=ServerLocks([url], tell, 0.1), tell=tell)


async def ask(engine: SGLangEngine) -> list[int]:
    return (await engine.generate([1], PARAMS, session="e-0")).token_ids


def loads(server: SGLang) -> int:
    return server.paths.count("update_weights_from_disk")


async def test_weights_that_were_replaced_in_the_served_folder_are_loaded(checkpoint):
    server, loaded = SGLang(), []
    server.model = str(checkpoint)
    async with await attached(server) as engine:
        for weights in (b"first", b"first", b"other"):
            model_in(checkpoint, weights)
            await engine.serve(str(checkpoint))
            await ask(engine)
            loaded.append(loads(server))
    assert loaded == [1, 1, 2], "once for weights of which the server has no version, and when they change"
    assert server.weights == content_hash(str(checkpoint))


async def test_weights_that_change_while_a_server_loads_them_are_not_played_with(checkpoint):
    class Slow(SGLang):
        async def _control(self, request: web.Request) -> web.Response:
            if request.path == "/update_weights_from_disk":
                model_in(checkpoint, b"half of others")
            return await super()._control(request)

    async with await attached(Slow()) as engine:
        with pytest.raises(EngineError, match=r"was changed while .* loaded it"):
            await engine.serve(str(checkpoint))


@pytest.mark.parametrize("with_version", [True, False])
async def test_what_another_program_has_loaded_meanwhile_is_refused(checkpoint, with_version):
    """The version of the weights stays as it was where the other program gives none."""
    server = SGLang()
    async with await attached(server) as engine:
        await engine.serve(str(checkpoint))
        assert await ask(engine) == [9]
        server.model = "other"
        server.weights = "b" if with_version else server.weights
        with pytest.raises(EngineError) as caught:
            await ask(engine)
    first, other = content_hash(str(checkpoint)), "b" if with_version else "of other"
    for words in ("http://127.0.0.1:", first, other, str(checkpoint), "another program", "use another server"):
        assert words in str(caught.value)


async def test_what_was_loaded_before_the_first_answer_is_refused(checkpoint):
    server = SGLang()
    async with await attached(server) as engine:
        await engine.serve(str(checkpoint))
    async with SGLangEngine([AttachedServer(engine.urls[0])]) as second:
        await second.serve(str(checkpoint))
        assert loads(server) == 1, "it has them"
        server.model, server.weights = "other", "b"
        with pytest.raises(EngineError, match="answers with weights b, not"):
            await ask(second)


def routed(server: SGLang, *routes: web.RouteDef) -> SGLang:
    """The server with these routes alone, and `/generate`."""
    server.app = web.Application()
    server.app.add_routes([*routes, web.post("/generate", server._generate)])
    return server


async def test_one_question_confirms_all_answers_that_came_before_it(checkpoint):
    server, questions = SGLang(), []

    async def info(request: web.Request) -> web.Response:
        questions.append(request.path)
        await until(lambda: server.paths.count("generate") in (0, EPISODES) and not server.under_way)
        return await server._info(request)

    routed(server, web.get("/model_info", info))
    server.model, server.weights = str(checkpoint), content_hash(str(checkpoint))
    async with await attached(server) as engine:
        await engine.serve(str(checkpoint))
        questions.clear()
        await asyncio.gather(*(engine.generate([1], PARAMS, session=f"{n}-0") for n in range(EPISODES)))
    assert 0 < len(questions) <= 8


async def test_answers_of_a_server_that_dies_before_it_confirmed_them_are_asked_of_another_one_at_once(checkpoint):
    questions = []

    async def die(request: web.Request) -> web.Response:
        questions.append(request.path)
        request.transport.abort()
        return web.Response()

    version = content_hash(str(checkpoint))
    servers = [routed(SGLang(), web.get("/model_info", die), web.get("/health_generate", die)), SGLang()]
    for server in servers:
        server.model, server.weights = str(checkpoint), version
    engine = SGLangEngine([AttachedServer(await server.start(), patience=-1) for server in servers])
    for one in engine.clients:
        one.server.model, one.weights = str(checkpoint), version
    async with engine:
        done = await asyncio.gather(*(engine.generate([1], PARAMS, session=f"{n}-0") for n in range(16)))
    assert [completion.token_ids for completion in done] == [[9]] * 16
    assert questions.count("/model_info") <= 2, "one failed connection, which aiohttp tries twice, is enough"


async def test_of_a_model_of_the_hub_the_name_decides_and_its_version_must_stay():
    server, said = SGLang(), []
    server.model, server.weights = "some/model", "default"
    async with await attached(server, said) as engine:
        with pytest.raises(UserError, match="serves some/model, not another/model; start it with that model"):
            await engine.serve("another/model")
        await engine.serve("some/model")
        assert await ask(engine) == [9]
        server.weights = "b"
        with pytest.raises(EngineError, match="answers with weights b, not default of some/model"):
            await ask(engine)
    (told,) = said
    assert "says that it serves some/model, version 'default'; which files it has loaded cannot be checked" in told


@pytest.mark.parametrize("change", [{}, {"max_position_embeddings": 512}])
async def test_a_server_loads_no_weights_of_another_architecture(tmp_path, checkpoint, change):
    config = Path("data/tiny_model/config.json").read_text()
    serving = model_in(tmp_path / "serving", b"other")
    (serving / "config.json").write_text(config)
    (checkpoint / "config.json").write_text(json.dumps(json.loads(config) | change))
    server = SGLang()
    server.model, server.weights = str(serving), content_hash(str(serving))
    refused = f"serves {serving}, and {checkpoint} differs from it in max_position_embeddings of config.json"
    async with await attached(server) as engine:
        with pytest.raises(UserError, match=re.escape(refused)) if change else nullcontext():
            await engine.serve(str(checkpoint))
    assert loads(server) == (0 if change else 1)


@pytest.mark.parametrize("same", [True, False])
async def test_a_gateway_that_loads_no_weights_is_believed_if_it_names_the_same_folder(checkpoint, same):
    server, said = SGLang(), []
    routed(server, web.get("/model_info", server._info))
    server.model, server.weights = str(checkpoint) if same else "elsewhere", "default"
    async with await attached(server, said) as engine:
        with nullcontext() if same else pytest.raises(EngineError, match="/pause_generation answered 404"):
            await engine.serve(str(checkpoint))
            assert await ask(engine) == [9]
            assert "cannot be checked" in said[-1]


async def test_a_request_that_is_broken_off_is_asked_again():
    """As SGLang does with all requests before another command's weights are loaded."""

    class Breaks(SGLang):
        broken = 0

        async def _generate(self, request: web.Request) -> web.Response:
            self.broken += 1
            if self.broken > 2:
                return await super()._generate(request)
            return web.json_response({"meta_info": {"finish_reason": {"type": "abort"}}})

    async with SGLangEngine([await Breaks().start()]) as engine:
        assert await ask(engine) == [9]


async def test_a_launched_server_is_told_the_version_and_comes_back_only_with_the_same_weights(checkpoint):
    version = content_hash(str(checkpoint))
    spec = ServerSpec(model=str(checkpoint), device="cuda", log_path=Path("log"))
    assert f"--weight-version={version}" in spec.command(1)
    lives = [SGLang() for _ in range(6)]
    for life in lives:
        life.model, life.weights = str(checkpoint), version
    server = Launched(lives)
    await server.begin()
    async with SGLangEngine([server], attempts=2) as engine:
        await engine.serve(str(checkpoint))
        await lives[0].die()
        assert await ask(engine) == [9], "started again, it has them"
        model_in(checkpoint, b"other")
        for life in lives[2:]:
            life.weights = content_hash(str(checkpoint))
        await lives[1].die()
        for _ in range(2):
            with pytest.raises(EngineError, match=rf"came back with weights \w+, not {version}.* was changed"):
                await ask(engine)
    assert [loads(life) for life in lives] == [0] * 6


HOLD = """
import asyncio, sys
from selfplay_pipeline.engines.server_lock import ServerLocks
sys.argv = ["selfplay", "generate"]
asyncio.run(ServerLocks([sys.stdin.readline().strip()], print, 1).take(alone=sys.stdin.readline() == "alone\\n"))
print("held", flush=True)
sys.stdin.read()
"""


def other_command(*, alone: bool) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )
    process.stdin.write(f"{URL}\n{'alone' if alone else 'shared'}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(("theirs", "ours"), [(True, True), (True, False), (False, True)])
def test_a_server_of_another_command_is_waited_for_and_refused_in_one_line(theirs, ours):
    said = []
    holds = ServerLocks([URL.replace("127.0.0.1", "localhost")], said.append, 0.05)
    with other_command(alone=theirs) as other:
        with pytest.raises(UserError) as caught:
            asyncio.run(holds.take(alone=ours))
        who = f"in use by `selfplay generate` (process {other.pid})"
        assert who in str(caught.value) and "was not free within 0 s" in str(caught.value)
        assert len(said) == 1 and who in said[0] and "waiting" in said[0]
        other.stdin.close()
        other.wait(300)
    asyncio.run(holds.take(alone=ours))
    holds.release()
    assert not list(server_lock.lock_folder().iterdir()), "the last one removes the file"


def test_commands_with_the_same_weights_share_a_server_until_one_loads_others():
    first, second = ServerLock(URL), ServerLock(URL)
    assert first.take(alone=False) and second.take(alone=False)
    assert not first.take(alone=True)
    first.release()
    assert second.take(alone=True)
    assert not first.take(alone=False)
    second.release()
    assert first.take(alone=True), "its file was removed"
    assert not second.take(alone=True)
    first.release()
    second.release()


def test_without_a_place_for_locks_only_the_versions_protect(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ServerLock(URL).take(alone=True) and ServerLock(URL).take(alone=True)


async def test_two_commands_that_wait_for_two_servers_do_not_wait_for_each_other():
    urls = [URL, URL.replace("29999", "29998")]

    async def use(order: list[str]) -> None:
        holds = ServerLocks(order, lambda text: None)
        for _ in range(20):
            await holds.take(alone=False)
            await asyncio.sleep(0)
            await holds.take(alone=True)
            await asyncio.sleep(0.001)
        holds.release()

    await asyncio.wait_for(asyncio.gather(use(urls), use(urls[::-1])), 300)
