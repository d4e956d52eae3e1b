"""Whatever else happens to an attached server, every recorded log-prob is of the checkpoint that the record names."""

import asyncio
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import aiohttp
import pytest
from own_log_probs import MODELS, checked
from shared_server import Server

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.engines.sglang_api import WITHOUT_WEIGHTS
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import SamplingParams

CONFIG = """\
base: tiny_honest
generate: {num_episodes: 64, episodes_per_state: 4, temperature: 1.0, max_concurrency: 8}
"""


class Commands:
    """Commands at one server, with a folder for each."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        (folder / "config.yaml").write_text(CONFIG)

    def begin(self, name: str, *arguments: str) -> subprocess.Popen:
        where = ("--config", str(self.folder / "config.yaml"), "--server-url", self.server.url)
        (self.folder / name).mkdir()
        with (self.folder / f"{name}.log").open("w") as log:
            command = [sys.executable, "-m", "selfplay_pipeline", *arguments, *where]
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def generate(self, name: str, model: str) -> subprocess.Popen:
        return self.begin(name, "generate", "--model", model, "--output", str(self.games(name)))

    def games(self, name: str) -> Path:
        return self.folder / name / "games.jsonl"

    def played(self, name: str) -> int:
        return self.games(name).read_bytes().count(b"\n") if self.games(name).exists() else 0

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_until(self, happened: Callable[[], bool], running: subprocess.Popen, name: str) -> None:
        while not happened():
            assert running.poll() is None, self.said(name)
            time.sleep(0.01)


@pytest.fixture
def commands(tmp_path, sglang_server) -> Commands:
    return Commands(tmp_path, sglang_server)


def test_weights_that_were_replaced_in_the_served_folder_are_the_ones_that_play(commands, tmp_path):
    folder = tmp_path / "model"
    for name, model in zip(("first", "second"), MODELS, strict=True):
        shutil.copytree(model, folder, dirs_exist_ok=True)
        assert commands.generate(name, str(folder)).wait(600) == 0, commands.said(name)
        found = checked(tmp_path / name)
        assert (found["episodes"], found["wrong episodes"]) == (64, 0)


async def load(url: str, *, paused: bool) -> None:
    """Load other weights as another program may: in the middle of completions, or without a version."""
    update = {"model_path": str(Path(MODELS[1]).resolve()), "flush_cache": False}
    if paused:
        update["weight_version"] = "theirs"
    async with aiohttp.ClientSession(url, raise_for_status=True) as http:
        if paused:
            await http.post("/pause_generation", json={"mode": "in_place"})
        await http.post("/update_weights_from_disk", json=update)
        if paused:
            await http.post("/continue_generation", json={})


@pytest.mark.parametrize("paused", [True, False], ids=["paused", "without a version"])
def test_nothing_is_recorded_of_weights_that_another_program_loads_meanwhile(commands, tmp_path, paused):
    running = commands.generate("first", MODELS[0])
    commands.wait_until(lambda: commands.played("first") >= 8, running, "first")
    asyncio.run(load(commands.server.url, paused=paused))
    assert running.wait(600) == 1
    found = checked(tmp_path / "first")
    assert 8 <= found["episodes"] < 64
    assert found["wrong episodes"] == 0
    (line,) = (line for line in commands.said("first").splitlines() if line.startswith("selfplay: "))
    for words in (commands.server.url, "another program has loaded", content_hash(MODELS[0]), "are missing"):
        assert words in line


def test_two_commands_with_other_weights_play_one_after_the_other(commands, tmp_path):
    first = commands.generate("first", MODELS[0])
    commands.wait_until(lambda: commands.played("first") >= 1, first, "first")
    first.send_signal(signal.SIGSTOP)
    second = commands.begin("second", "evaluate", MODELS[1], "--num-states", "16", "--output", str(tmp_path / "second"))
    commands.wait_until(lambda: "is in use by `selfplay generate`" in commands.said("second"), second, "second")
    first.send_signal(signal.SIGCONT)
    assert (first.wait(600), second.wait(600)) == (0, 0), commands.said("first") + commands.said("second")
    for name, episodes in (("first", 64), ("second", 48)):
        found = checked(tmp_path / name)
        assert (found["episodes"], found["wrong episodes"]) == (episodes, 0)


def test_a_real_server_that_released_its_memory_plays_again_after_it_took_it_back(sglang_server):
    """A CPU has no memory saver, so that SGLang does all but free the memory: it pauses, forgets its cache, and serves
    nothing until it has new weights. The second engine stands for the command after one that was killed.
    """
    prompt, params = [3, 4, 5], SamplingParams(temperature=0.0, max_new_tokens=4, stop_token_ids=())

    async def play() -> tuple[Sequence[int], str | None, Sequence[int]]:
        async with SGLangEngine([sglang_server.url], hang_timeout=30) as engine:
            (client,) = engine.clients
            await engine.serve(MODELS[0])
            before = await engine.generate(prompt, params)
            await engine.release()
            assert (await client.info()).weight_version == client.weights, "a server without a saver keeps all"
            client.saves_memory = True
            await engine.release()
            marked = (await client.info()).weight_version
            client._released = False  # as if the command was killed here
        async with SGLangEngine([sglang_server.url], hang_timeout=30) as engine:
            await engine.serve(MODELS[0])
            after = await engine.generate(prompt, params)
        return before.token_ids, marked, after.token_ids

    before, marked, after = asyncio.run(play())
    assert marked == WITHOUT_WEIGHTS
    assert before == after
