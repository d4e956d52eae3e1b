"""Which engine serves which checkpoint, and which servers and memory each engine has."""

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from factories import TINY, other_weights
from hypothesis import given
from hypothesis import strategies as st
from test_client import PARAMS
from test_shared_gpu import SGLang

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import EngineConfig
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.pool import EnginePool, _reloadable, engine_for, log_name, plan
from selfplay_pipeline.engines.server_lock import ServerLock
from selfplay_pipeline.engines.types import Engine, EngineError
from selfplay_pipeline.generate.stage import check_seats

A, B = TINY, "data/tiny_honest_model"
URLS = [f"http://127.0.0.1:{port}" for port in range(29_995, 30_000)]

pytestmark = pytest.mark.usefixtures("no_pauses")


@pytest.mark.parametrize(
    ("configured", "at_once", "shares"),
    [
        ({}, 0, []),  # scripted players alone
        ({}, 1, [0.8]),
        ({}, 2, [0.4, 0.4]),
        ({"kind": "transformers"}, 3, [0.8 / 3] * 3),
        ({"data_parallel": 4, "memory_fraction": 0.6}, 2, [0.3, 0.3]),
    ],
)
def test_launched_servers_are_alike_and_share_a_gpu(configured, at_once, shares):
    config = EngineConfig(**configured)
    engines = plan(config, at_once)
    assert [engine.memory_fraction for engine in engines] == shares
    assert all(engine.model_copy(update={"memory_fraction": config.memory_fraction}) == config for engine in engines)


def attached(urls: Sequence[str], at_once: int) -> list[list[str]]:
    return [engine.server_url for engine in plan(EngineConfig(server_url=urls), at_once)]


def test_one_checkpoint_has_all_attached_servers_and_logs_are_numbered():
    assert (attached(URLS, 1), attached(URLS[:1], 1), attached(URLS, 0)) == ([URLS], [URLS[:1]], [])
    assert [log_name(number) for number in range(3)] == ["server.log", "server_2.log", "server_3.log"]


@pytest.mark.parametrize("at_once", [2, 3, 5])
def test_attached_servers_are_divided_among_checkpoints_in_the_order_of_their_locks(at_once):
    groups = attached(URLS, at_once)
    paths = [ServerLock(url).path for group in groups for url in group]
    assert paths == sorted(paths) and len(paths) == len(URLS)
    assert {len(group) for group in groups} <= {len(URLS) // at_once, -(-len(URLS) // at_once)}
    assert groups == attached(URLS[::-1], at_once), "whatever order they are named in"


def test_two_names_of_one_server_have_one_lock():
    named = ("http://localhost", "http://127.0.0.1:80", "https://localhost", "https://127.0.0.1:443")
    http, same, https, also = (ServerLock(url).path for url in named)
    assert http == same != https == also
    others = {ServerLock(url).path for url in ("http://localhost:81", "http://localhost/v1", "http://127.0.0.2:80")}
    assert len(others | {http, https}) == 5


@pytest.mark.parametrize(
    ("urls", "at_once", "number"),
    [(URLS[:1], 2, "1 is given"), (URLS[:2], 3, "2 are given"), ([URLS[0], "http://localhost:29995"], 2, "1 is given")],
    ids=["two of one", "three of two", "two names of one"],
)
def test_attached_servers_that_are_fewer_than_the_checkpoints_are_refused(tmp_path, urls, at_once, number):
    words = f"engine.server_url: each of the {at_once} checkpoints .* a server of its own.*{number}.*leave the key out"
    third = other_weights(tmp_path / "third")
    with pytest.raises(UserError, match=words):
        EnginePool(EngineConfig(server_url=urls), "cpu", Path("logs"), at_once=at_once)
    players = ["policy", B, third][:at_once]
    with pytest.raises(UserError, match=words):
        check_seats(load_config("tiny", {"engine.server_url": urls}), A, players)
    check_seats(load_config("tiny", {"engine.server_url": URLS[:at_once]}), A, players)


@pytest.mark.parametrize(
    ("held", "asked", "keep", "engine"),
    [
        (["", ""], "a", [], 0),
        (["a", ""], "a", ["b"], 0),  # stays
        (["a", ""], "b", ["a"], 1),  # has none yet
        (["a", ""], "b", [], 1),  # so has it
        (["a", "b"], "c", ["a"], 1),  # in place of b, which is not needed
        (["a", "b"], "c", ["b"], 0),
        (["a", "b"], "b", ["c"], 1),
        (["a"], "b", [], 0),
    ],
)
def test_a_checkpoint_keeps_its_engine_while_it_is_needed(held, asked, keep, engine):
    assert engine_for(held, asked, keep) == engine


@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True), max_size=12))
def test_all_that_are_needed_at_the_same_time_are_served_at_the_same_time(episodes):
    held = [""] * 3
    for needed in episodes:
        before = {*needed}.intersection(held)
        places = {held.index(one): one for one in before}
        for checkpoint in needed:
            held[engine_for(held, checkpoint, needed)] = checkpoint
        assert {*needed} <= {*held}
        assert all(held[place] == one for place, one in places.items()), "no engine changed that was needed"


def test_more_checkpoints_at_the_same_time_than_there_are_engines_are_refused():
    with pytest.raises(UserError, match=r"a, b, c: 3 checkpoints are needed at the same time, and .* serves 2"):
        engine_for(["a", "b"], "c", ["a", "b"])


async def begun(servers: Sequence[SGLang], at_once: int) -> EnginePool:
    urls = [await server.start() for server in servers]
    return EnginePool(EngineConfig(server_url=urls), "cpu", Path("logs"), at_once=at_once)


async def ask(engine: Engine) -> None:
    """Raises unless the answer names the weights that are to be served."""
    assert (await engine.generate([1], PARAMS, session="e-0")).token_ids == [9]


def loads(servers: Sequence[SGLang]) -> list[int]:
    return sorted(server.paths.count("update_weights_from_disk") for server in servers)


def serves(servers: Sequence[SGLang]) -> set[str]:
    return {str(server.weights) for server in servers}


async def test_three_checkpoints_play_with_each_other_on_three_servers_and_with_more_one_after_the_other(tmp_path):
    third, further = (other_weights(tmp_path / name, factor) for name, factor in (("third", 0.8), ("fourth", 1.2)))
    servers = [SGLang() for _ in range(3)]
    async with await begun(servers, 3) as pool:
        engines = [await pool.serving(checkpoint, keep=[A, B, third]) for checkpoint in (A, B, third)]
        await asyncio.gather(*map(ask, engines))
        assert serves(servers) == {content_hash(checkpoint) for checkpoint in (A, B, third)}
        assert loads(servers) == [1, 1, 1]
        fourth = await pool.serving(further, keep=[A, third])
        await asyncio.gather(*map(ask, [engines[0], fourth, engines[2]]))
        with pytest.raises(EngineError, match=f"{B} is not served any more: .* to {further}"):
            await ask(engines[1])
        assert loads(servers) == [1, 1, 2]
        for server in servers:
            url = str(server.server.make_url("/")).rstrip("/")
            assert not ServerLock(url).take(alone=False), "no other command may use it"
    assert serves(servers) == {content_hash(checkpoint) for checkpoint in (A, further, third)}


async def test_two_commands_that_divide_the_same_servers_play_one_after_the_other(tmp_path):
    servers, third = [SGLang() for _ in range(2)], other_weights(tmp_path / "third")

    async def command(urls: list[str], checkpoints: Sequence[str]) -> None:
        async with EnginePool(EngineConfig(server_url=urls), "cpu", Path("logs"), at_once=2) as pool:
            engines = [await pool.serving(checkpoint, keep=checkpoints) for checkpoint in checkpoints]
            await asyncio.sleep(0.05)
            await asyncio.gather(*map(ask, engines))

    urls = [await server.start() for server in servers]
    await asyncio.gather(command(urls, [A, B]), command(urls[::-1], [B, third]))


async def test_weights_that_were_replaced_under_the_same_path_are_loaded(tmp_path):
    server, folder, loaded = SGLang(), tmp_path / "model", []
    async with await begun([server], 1) as pool:
        for model in (A, A, B):
            shutil.copytree(model, folder, dirs_exist_ok=True)
            for _ in range(2):
                await ask(await pool.serving(str(folder)))
                loaded += loads([server])
    assert loaded == [1, 1, 1, 1, 2, 2]


async def test_an_engine_that_several_ask_for_at_the_same_time_is_started_once():
    server = SGLang()
    async with await begun([server], 1) as pool:
        await asyncio.gather(*map(ask, await asyncio.gather(*(pool.serving(A) for _ in range(4)))))
    assert loads([server]) == [1]


@pytest.mark.parametrize(
    ("changes", "reloadable"),
    [
        ({}, True),
        ({"dtype": "bfloat16", "transformers_version": "4.57.0"}, True),
        ({"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}}, False),
        ({"max_position_embeddings": 512}, False),
    ],
)
def test_a_server_loads_weights_only_of_a_model_that_is_the_same_in_all_else(tmp_path, changes, reloadable):
    config = json.loads(Path("data/tiny_model/config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    assert _reloadable("data/tiny_model", str(tmp_path)) == reloadable
    old = config | {"rope_theta": 10000.0}  # as earlier versions of transformers wrote it
    del old["rope_parameters"], old["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(old))
    assert _reloadable("data/tiny_model", str(tmp_path))
    assert not _reloadable("someone/a-model-that-is-not-here", str(tmp_path))
    assert not _reloadable(str(tmp_path / "gone"), str(tmp_path))
