"""Server and trainer on one GPU: who waits leaves its memory to the other. Real servers on loopback, without a GPU."""

import asyncio
import runpy
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from aiohttp import web
from scripted_server import answer_to
from test_client import PARAMS, Fake, Launched
from test_resume import OnlyTraining, trained

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import EngineConfig
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines import pool, sglang_server
from selfplay_pipeline.engines.pool import EnginePool
from selfplay_pipeline.engines.sglang_api import RELEASED, WITHOUT_WEIGHTS
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.iterate import loop as iterate
from selfplay_pipeline.iterate import preflight
from selfplay_pipeline.train.groups import NoSignalError

LOADS = ["pause_generation", "update_weights_from_disk", "flush_cache", "continue_generation", "generate"]
RELEASES = ["pause_generation", "flush_cache", "release_memory_occupation"]
TAKES_BACK = ["pause_generation", "resume_memory_occupation", *LOADS[1:]]

pytestmark = pytest.mark.usefixtures("no_pauses")


class SGLang(Fake):
    """What SGLang does when its memory is given back and taken again, with a life that ends where SGLang's would."""

    def __init__(self, refuses: str = "") -> None:
        super().__init__()
        self.gate.set()
        self.slow = asyncio.Event()
        self.slow.set()
        self.paths, self.refuses, self.released, self.under_way = [], refuses, False, 0
        for path in {*RELEASES, *TAKES_BACK} - {"generate"}:
            self.app.router.add_post(f"/{path}", self._control)

    async def _generate(self, request: web.Request) -> web.Response:
        self.paths.append("generate")
        assert not self.released, "it has no weights"
        self.under_way += 1
        await asyncio.sleep(0.01)
        self.under_way -= 1
        answer = answer_to(await request.json(), [9])
        answer["meta_info"]["weight_version"] = self.weights
        return web.json_response(answer)

    async def _control(self, request: web.Request) -> web.Response:
        path = request.path.strip("/")
        self.paths.append(path)
        body = await request.json()
        if path == "release_memory_occupation":
            await self.slow.wait()
        if path == self.refuses:
            return web.json_response({"error": {"message": "no"}}, status=400)
        if path in ("release_memory_occupation", "resume_memory_occupation"):
            assert body == RELEASED
            assert not self.under_way, "SGLang asserts that it is idle"
            assert self.released == path.startswith("resume"), "SGLang fails where there is nothing to take back"
            self.released = not self.released
            return web.json_response(None)
        if path == "update_weights_from_disk":
            assert not self.released, "there is no memory to load them into"
            self.model, self.weights = body["model_path"], body["weight_version"]
            return web.json_response({"success": True, "message": ""})
        return web.Response()


class Mortal(Launched):
    """A launched server that is gone when it is ended."""

    async def end(self) -> None:
        await super().end()
        await self.lives[self.restarts].die()


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "model.safetensors").touch()
    return tmp_path / "checkpoint"


def played(lives: list[SGLang], *acts, tell=lambda text: None) -> Mortal:
    """Run coroutines of an engine, one after the other, on a server of so many lives."""

    async def play() -> Mortal:
        server = Mortal(lives)
        await server.begin()
        async with SGLangEngine([server], tell=tell) as engine:
            for act in acts:
                await act(engine)
        return server

    return asyncio.run(play())


async def ask(engine: SGLangEngine) -> None:
    await asyncio.gather(*(engine.generate([1], PARAMS, session=str(n)) for n in range(4)))


async def release(engine: SGLangEngine) -> None:
    await engine.release()


def test_memory_is_given_back_when_nothing_is_under_way_and_taken_again_before_weights_are_loaded(checkpoint):
    server = SGLang()
    played([server], ask, release, lambda engine: engine.reload(checkpoint), ask, release)
    assert server.paths == ["generate"] * 4 + RELEASES + TAKES_BACK + ["generate"] * 4 + RELEASES
    assert server.weights == content_hash(str(checkpoint))


def test_a_server_without_weights_is_not_asked():
    server = SGLang()
    with pytest.raises(AssertionError, match="it was not reloaded"):
        played([server], release, ask)
    assert server.paths == RELEASES


def test_a_server_that_dies_while_it_has_no_memory_comes_back_with_what_it_is_to_serve(checkpoint):
    first, second = SGLang(), SGLang()
    server = played([first, second], release, lambda engine: first.die(), lambda engine: engine.reload(checkpoint), ask)
    assert (server.restarts, server.model) == (1, str(checkpoint))
    assert first.paths == RELEASES
    assert second.paths == [*LOADS, *["generate"] * 4], "it has all its memory and is not told to take any"


@pytest.mark.parametrize(
    ("refused", "first_does"),
    [
        ("release_memory_occupation", RELEASES),
        ("resume_memory_occupation", [*RELEASES, *TAKES_BACK[:2], "continue_generation"]),
    ],
)
def test_a_server_that_fails_at_it_is_ended_and_started_again_when_it_is_needed(checkpoint, refused, first_does):
    first, second, said = SGLang(refused), SGLang(), []

    async def nothing_is_left(engine: SGLangEngine) -> None:
        assert first.released or first.dead, "the trainer needs the memory"

    server = played(
        [first, second], release, nothing_is_left, lambda engine: engine.reload(checkpoint), ask, tell=said.append
    )
    assert (server.ended, server.restarts) == (1, 1)
    assert first.paths == first_does
    assert second.paths == [*LOADS, *["generate"] * 4]
    assert len(said) == (refused == "release_memory_occupation")


class Attached(SGLang):
    """SGLang as another program launched it, on GPUs that it can share."""

    def __init__(self, refuses: str = "", saver: bool = True) -> None:
        super().__init__(refuses)
        self.saver, self.model = saver, "their/model"
        self.app.router.add_get("/server_info", self._server_info)
        self.app.router.add_post("/update_weight_version", self._version)

    async def _server_info(self, request: web.Request) -> web.Response:
        return web.json_response({"enable_memory_saver": self.saver})

    async def _version(self, request: web.Request) -> web.Response:
        self.weights = (await request.json())["new_version"]
        return web.json_response({"success": True})


def attached(server: SGLang, *acts, tell=lambda text: None) -> None:
    """Run coroutines of an engine at an attached server, and close the engine."""

    async def play() -> None:
        url = await server.start()
        async with SGLangEngine([url], tell=tell, attempts=2) as engine:
            for act in acts:
                await act(engine)

    asyncio.run(play())


async def reload(engine: SGLangEngine) -> None:
    await engine.reload(Path(engine.clients[0].server.model))


ASKED = ["generate"] * 4


@pytest.mark.parametrize(
    ("saver", "acts", "does"),
    [
        (True, [ask, release, reload, ask], [*LOADS, *ASKED, *RELEASES, *TAKES_BACK, *ASKED]),
        (False, [release, ask], [*LOADS, *ASKED]),
        (True, [release], [*LOADS, *RELEASES, *TAKES_BACK]),
    ],
    ids=["released", "no memory saver", "given back by a command that ends"],
)
def test_an_attached_server_releases_its_memory_if_it_can_and_has_it_back_at_the_end(checkpoint, saver, acts, does):
    server, version, seen = Attached(saver=saver), content_hash(str(checkpoint)), []

    async def look(engine: SGLangEngine) -> None:
        seen.append((server.released, server.weights))

    at = acts.index(release) + 1
    attached(server, lambda engine: engine.serve(str(checkpoint)), *acts[:at], look, *acts[at:])
    assert server.paths == does
    assert seen == [(True, WITHOUT_WEIGHTS) if saver else (False, version)]
    assert (server.released, server.weights) == (False, version)


def test_a_server_that_a_killed_command_left_without_memory_takes_it_back_for_the_next(checkpoint):
    server = Attached()
    server.released, server.weights, server.model = True, WITHOUT_WEIGHTS, str(checkpoint)
    attached(server, lambda engine: engine.serve(str(checkpoint)), ask)
    assert server.paths == [*TAKES_BACK, *["generate"] * 4]
    other = Attached()
    other.weights = WITHOUT_WEIGHTS
    with pytest.raises(UserError, match="has released its weights; start it again, or give the model as a folder"):
        attached(other, lambda engine: engine.serve("their/model"))


def test_a_server_that_a_killed_command_left_paused_goes_on_for_the_next(checkpoint):
    server = Attached()
    server.model, server.weights = str(checkpoint), content_hash(str(checkpoint))
    attached(server, lambda engine: engine.serve(str(checkpoint)), ask)
    assert server.paths == ["continue_generation", *["generate"] * 4]


def test_a_command_that_is_stopped_while_a_server_releases_its_memory_gives_it_back(checkpoint):
    server, slow = Attached(), asyncio.Event()

    async def stopped(engine: SGLangEngine) -> None:
        server.slow = slow
        releasing = asyncio.create_task(engine.release())
        while server.paths[-1] != "release_memory_occupation":
            await asyncio.sleep(0.01)
        releasing.cancel()
        await asyncio.wait([releasing])
        asyncio.get_running_loop().call_later(0.1, slow.set)

    attached(server, lambda engine: engine.serve(str(checkpoint)), stopped)
    assert server.paths == [*LOADS, *RELEASES, *TAKES_BACK]
    assert (server.released, server.weights) == (False, content_hash(str(checkpoint)))


def test_an_attached_server_that_a_resumed_command_has_not_used_releases_its_memory_too(tmp_path):
    server = Attached()

    async def play() -> None:
        config = load_config("tiny", {"engine.server_url": [await server.start()]})
        async with EnginePool(config.engine, "cpu", tmp_path, alone=True) as engines:
            await engines.release("data/tiny_model")
            assert (server.released, server.weights) == (True, WITHOUT_WEIGHTS)

    asyncio.run(play())
    assert server.paths == [*LOADS, *RELEASES, *TAKES_BACK]


def test_an_attached_server_that_does_not_release_its_memory_ends_the_command_in_one_line(checkpoint):
    server = Attached("release_memory_occupation")
    with pytest.raises(
        EngineError, match="did not release the GPU memory that the trainer needs: start it again"
    ) as one:
        attached(server, lambda engine: engine.serve(str(checkpoint)), release)
    assert "\n" not in str(one.value)


@pytest.mark.parametrize(
    ("device", "savers", "shares"), [("cuda", [False, True], True), ("cuda", [False], False), ("cpu", [True], False)]
)
def test_a_loop_releases_what_attached_servers_can_release(tmp_path, caplog, device, savers, shares):
    (tmp_path / "model").mkdir()

    async def found() -> tuple[bool, list[str]]:
        urls = [await Attached(saver=saver).start() for saver in savers]
        config = load_config("tiny", {"device": device, "engine.server_url": urls, "model": str(tmp_path / "model")})
        assert not preflight.shares_gpu(config)
        return await preflight.attached_share(config), urls

    with caplog.at_level("INFO"):
        found, urls = asyncio.run(found())
    assert found == shares
    for url, saver in zip(urls, savers, strict=True):
        said = "shares GPUs with the trainer, and releases its memory" if saver else "keeps its memory"
        assert (f"{url} {said} while training" in caplog.text) == (device == "cuda")


def test_a_hub_model_cannot_be_loaded_again_into_a_server_that_releases_its_weights():
    async def check() -> None:
        url = await Attached().start()
        config = load_config("tiny", {"device": "cuda", "engine.server_url": [url], "model": "some/model"})
        with pytest.raises(UserError, match=f"some/model: {url} releases its weights while training"):
            await preflight.attached_share(config)

    asyncio.run(check())


def test_weights_that_were_given_back_are_loaded_anew_even_where_they_are_the_same(checkpoint, monkeypatch):
    server, opened = SGLang(), []

    @asynccontextmanager
    async def open_engine(config, device, model, log, notify, tell, *, shares_gpu, alone):
        opened.append((model, shares_gpu))
        launched = Launched([server])
        await launched.begin()
        async with SGLangEngine([launched]) as engine:
            yield engine

    async def play(*served: str) -> None:
        async with EnginePool(EngineConfig(), "cpu", Path("logs"), shares_gpu=True) as engines:
            await engines.release(served[0])
            for model in served:
                await engines.serving(model)
                await engines.serving(model)
                await engines.release(model)

    monkeypatch.setattr(pool, "open_engine", open_engine)
    asyncio.run(play(str(checkpoint), str(checkpoint)))
    assert opened == [(str(checkpoint), True)]
    assert server.paths == RELEASES + TAKES_BACK + RELEASES
    server = SGLang()
    asyncio.run(play("some/model", "some/model"))
    assert server.paths == RELEASES * 2, "a hub name cannot be loaded by us: its server is started anew"
    assert opened[1:] == [("some/model", True)] * 2


def test_a_server_on_a_gpu_uses_flashinfer_and_saves_memory_if_it_shares_it(monkeypatch, tmp_path):
    def spec(device: str, shares_gpu: bool) -> ServerSpec:
        return ServerSpec(model="m", device=device, log_path=Path("log"), shares_gpu=shares_gpu)

    runtime = tmp_path / "nvidia" / "lib" / "libcudart.so.13"
    file = type("PackagePath", (), {"name": runtime.name, "locate": lambda self: runtime})()
    monkeypatch.setattr(sglang_server.importlib.metadata, "files", lambda package: [file])
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    for device in ("cpu", "cuda"):
        for shares in (False, True):
            saves = device == "cuda" and shares
            assert ("--attention-backend=flashinfer" in spec(device, shares).command(1)) == (device == "cuda")
            assert ("--enable-memory-saver" in spec(device, shares).command(1)) == saves
            path = spec(device, shares).environment().get("LD_LIBRARY_PATH")
            assert path == (f"{runtime.parent}:/somewhere" if saves else None)


def test_sglang_knows_what_it_is_told_and_asked():
    source = Path(find_spec("sglang").submodule_search_locations[0]) / "srt"
    constants = runpy.run_path(str(source / "constants.py"))
    assert '"--enable-memory-saver"' in (source / "server_args.py").read_text()
    assert set(RELEASED["tags"]) == set(constants["GPU_MEMORY_ALL_TYPES"]) - {constants["GPU_MEMORY_TYPE_CUDA_GRAPH"]}


def test_memory_is_shared_where_both_stay_on_gpus_that_are_taken_here():
    server = {"engine.server_url": ["http://localhost:1"]}
    for changes in ({}, {"iterate.keep_processes": False}, server, {"device": "cpu"}):
        assert preflight.shares_gpu(load_config("tiny", {"device": "cuda"} | changes)) == (not changes)


class Noted(OnlyTraining):
    """Notes what is done to processes, and does none of it."""

    notes: list[str]

    async def _generate(self, number, checkpoint):
        self.notes.append("play")
        return await super()._generate(number, checkpoint)


@pytest.mark.parametrize(
    ("device", "keeps", "noted"),
    [
        ("cuda", True, ["prepare", "play", "release", "train"]),
        ("cuda", False, ["play", "stop server", "train", "stop trainer"]),
        ("cpu", True, ["prepare", "play", "train"]),
        ("cpu", False, ["play", "stop server", "train", "stop trainer"]),
    ],
)
def test_the_server_gives_memory_back_before_a_training_and_the_trainer_after_it(
    tmp_path, monkeypatch, device, keeps, noted
):
    notes, told = [], set()

    async def train(job, trainer):
        notes.append("train")
        told.add(job.shares_gpu)
        if len(notes) > len(noted):
            raise NoSignalError("all groups")
        return trained(job.output)

    async def note_later(what):
        notes.append(what)

    def prepare(job, *rest):
        told.add(job.shares_gpu)
        notes.append("prepare")

    settings = {"iterate.evaluate_every": 0, "iterate.num_iterations": 2, "iterate.keep_processes": keeps}
    monkeypatch.setattr(Noted, "notes", notes, raising=False)
    monkeypatch.setattr(iterate, "check_run", lambda config: None)
    monkeypatch.setattr(iterate, "train_policy", train)
    monkeypatch.setattr(iterate, "prepare_training", prepare)
    monkeypatch.setattr(iterate.Servers, "release", lambda self, checkpoint: note_later("release"))
    monkeypatch.setattr(iterate.Servers, "stop", lambda self: note_later("stop server"))
    monkeypatch.setattr(iterate.Trainer, "stop", lambda self: notes.append("stop trainer"))
    asyncio.run(iterate.run_iterate(load_config("tiny", settings | {"device": device}), tmp_path / "run", Noted))
    assert notes == [*noted, *noted, "stop trainer", "stop server"]
    assert told == {device == "cuda" and keeps}
