"""A server that dies, hangs or goes away costs time, and no game."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from hostile_folder import fill, imported_by_runpy, ran
from recording_proxy import RecordingProxy
from test_kill import Driver

from selfplay_pipeline.generate.read_records import read_episodes

GAMES, EPISODES = 96, 8
CONFIG = """\
base: tiny
game: {{size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: {errors}, prompts: compact}}
generate: {{num_episodes: {games}, episodes_per_state: {episodes}, temperature: 1.0, max_new_tokens: 48,
max_concurrency: 4}}
engine: {engine}
"""
IDS = sorted(f"s0-g{group:06d}-p{episode}" for group in range(GAMES // EPISODES) for episode in range(EPISODES))


class Run:
    """`selfplay generate` in a folder."""

    def __init__(self, folder: Path, engine: str, errors: int = 1) -> None:
        self.folder, self.games = folder, folder / "games.jsonl"
        (folder / "config.yaml").write_text(CONFIG.format(games=GAMES, episodes=EPISODES, engine=engine, errors=errors))

    def begin(self, *options: str, cwd: Path | None = None) -> Driver:
        command = ("generate", "--config", str(self.folder / "config.yaml"), "--output", str(self.games), *options)
        return Driver(self.folder, *command, cwd=cwd)

    def ids(self) -> list[str]:
        return sorted(record.episode_id for record in read_episodes(self.games))

    def said(self) -> str:
        return (self.folder / "driver.log").read_text()

    def played(self) -> int:
        return self.games.read_bytes().count(b"\n") if self.games.exists() else 0

    def wait_until(self, happened: Callable[[], bool], driver: Driver) -> None:
        while not happened():
            assert driver.process.poll() is None, self.said()
            time.sleep(0.01)


def signal_one(driver: Driver, named: str, number: signal.Signals) -> None:
    """Send a signal to the driver's youngest process of that name."""
    descendants = psutil.Process(driver.process.pid).children(recursive=True)
    found = [process.pid for process in descendants if named in " ".join(process.cmdline())]
    assert found, named
    os.kill(max(found), number)


def test_a_launched_server_that_hangs_is_started_again_and_every_game_is_there_once(tmp_path):
    """In a folder of which it runs no file. `test_kill.py` kills a server."""
    (hostile := tmp_path / "hostile").mkdir()
    fill(hostile, spare=imported_by_runpy())
    run = Run(tmp_path, "{hang_timeout: 8}")
    driver = run.begin(cwd=hostile)
    run.wait_until(lambda: run.played() >= 5, driver)
    signal_one(driver, "sglang::scheduler", signal.SIGSTOP)
    struck = run.played()
    assert driver.process.wait(1800) == 0, run.said()[-3000:]
    assert struck < GAMES, "the server was struck after the last game"
    assert run.ids() == IDS
    (line,) = (line for line in run.said().splitlines() if "starting it again with" in line)
    assert "hangs: no sign of life for 8 s (engine.hang_timeout)" in line and "(1 of 3)" in line
    assert ran(hostile) == ""
    driver.assert_nothing_is_left()


def test_an_attached_server_that_is_back_in_time_loses_nothing_and_what_is_lost_is_played_by_the_same_command(
    tmp_path, sglang_server
):
    """The server goes away twice: the first command waits too short for it, and the second long enough."""
    run = Run(tmp_path, "{hang_timeout: 5}")
    with RecordingProxy(sglang_server.url) as proxy:
        driver = run.begin("--server-url", proxy.url)
        run.wait_until(lambda: run.played() >= 5, driver)
    assert driver.process.wait(1200) == 1
    kept, played = run.games.read_bytes(), run.played()
    assert 0 < played < GAMES
    assert f"{GAMES - played} of {GAMES} episodes are missing" in run.said()
    with RecordingProxy(sglang_server.url, proxy.port):
        driver = Run(tmp_path, "{hang_timeout: 50}").begin("--server-url", proxy.url)
        run.wait_until(lambda: run.played() > played, driver)
    run.wait_until(lambda: "waiting up to 100 s for it" in run.said(), driver)
    with RecordingProxy(sglang_server.url, proxy.port):
        assert driver.process.wait(1200) == 0, run.said()[-3000:]
    assert "answers again" in run.said()
    assert run.games.read_bytes().startswith(kept)
    assert run.ids() == IDS
