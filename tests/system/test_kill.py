"""Killed anywhere, the same command continues; whatever ends the driver, nothing is left running."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from watching import Listener, Watch

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.loop import AGAIN, Loop, run_iterate
from selfplay_pipeline.train.groups import read_data
from selfplay_pipeline.train.saves import has_state

EPOCHS = 2
CONFIG = f"""\
base: tiny
game: {{size: 3, max_score: 9, scale_max: 1, max_length: 20, prompts: compact}}
generate: {{num_episodes: 24, episodes_per_state: 4, temperature: 1.0, max_new_tokens: 48, max_concurrency: 4}}
convert: {{val_fraction: 0.2}}
train: {{epochs: {EPOCHS}, train_batch_size: 16, micro_batch_size: 16, learning_rate: 1.0e-4, save_every: 1,
         keep_zero_signal: true}}
iterate: {{num_iterations: 2}}
evaluate: {{monitor_states: 4}}
"""
SELDOM_SAVED = """\
base: tiny
engine: {kind: transformers}
generate: {num_episodes: 16, episodes_per_state: 4, temperature: 1.0, max_new_tokens: 48}
train: {train_batch_size: 32, micro_batch_size: 16, mini_batches: 2, kl_coef: 0, keep_zero_signal: true,
        loggers: [console]}
iterate: {num_iterations: 3, evaluate_every: 0, state_every: 3}
"""
GONE_WITHIN = 300.0
"""Seconds. An idle machine takes up to 15, one that runs another suite as well takes more."""


class Driver:
    """`selfplay …` in a process group of its own; all its descendants carry a mark in their environment.

    Watched from its start to `assert_nothing_is_left`.
    """

    def __init__(self, folder: Path, *arguments: str, cwd: Path | None = None) -> None:
        self.mark = uuid.uuid4().hex
        self.log = (folder / "driver.log").open("ab")
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "selfplay_pipeline", *arguments],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, "SELFPLAY_TEST_MARK": self.mark, "TMPDIR": str(self.temporary)},
        )
        self.watch = Watch(self.mark)

    def processes(self) -> dict[int, str]:
        """Command lines of processes that still carry the mark."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if self.mark.encode() in (entry / "environ").read_bytes():
                        line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found[int(entry.name)] = line[:200]
                except OSError:
                    continue
        return found

    def left(self) -> list[str]:
        return list(self.processes().values())

    def wait_until(self, happened: Callable[[], bool], every: float = 0.01) -> None:
        while not happened():
            assert self.process.poll() is None, "the driver ended before it could be killed"
            time.sleep(every)

    def send_when(self, number: signal.Signals, happened: Callable[[], bool], every: float = 0.01) -> None:
        """Send a signal to the driver once something has happened, after which is looked every so many seconds."""
        self.wait_until(happened, every)
        os.kill(self.process.pid, number)
        self.process.wait(GONE_WITHIN)

    def kill_when(self, words: str, happened: Callable[[], bool]) -> None:
        """Kill the process in whose command line these words are, and which is no supervisor."""
        self.wait_until(happened)
        lines = self.processes()
        found = {pid for pid, line in lines.items() if words in line and "core.processes" not in line}
        os.kill(min(found), signal.SIGKILL)  # a child that it is starting has its command line for a moment

    def files_left(self) -> list[Path]:
        """In the temporary folder, of supervisors, and in shared memory, where each name begins with its maker's."""
        names = [f"*{folder.name}*" for folder in self.watch.scratch]
        shared = [path for name in names for path in Path("/dev/shm").glob(name)]
        return [*self.temporary.iterdir(), *filter(Path.exists, self.watch.scratch), *shared]

    def assert_nothing_is_left(self) -> None:
        deadline = time.monotonic() + GONE_WITHIN
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.2)
        self.watch.stop()
        assert self.left() == []


@dataclass
class Killed:
    """A run of two iterations that was stopped in each stage, and then came to its end."""

    run: Path
    drivers: list[Driver]
    said: str
    """By all drivers."""
    files_left: list[Path]
    """By any of the drivers, after the last."""

    @property
    def listeners(self) -> set[Listener]:
        return {listener for driver in self.drivers for listener in driver.watch.listeners}


class Watched:
    """What the run has come to, from its files."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def finished(self, number: int, stage: str) -> bool:
        state = self.run / "state.json"
        return state.exists() and stage in json.loads(state.read_text())["iterations"].get(str(number), {})

    def converting(self, number: int) -> bool:
        return any((self.run / f"iter_{number}").glob(".train.parquet.*.tmp")) or self.finished(number, "convert")

    def saved(self, number: int) -> bool:
        return (self.run / f"iter_{number}" / "trainer_state" / "latest_checkpointed_iteration.txt").exists()

    def games(self, number: int) -> int:
        return self._lines(number, "selfplay_games.jsonl")

    def steps(self, number: int) -> int:
        return self._lines(number, "metrics.jsonl")

    def _lines(self, number: int, name: str) -> int:
        path = self.run / f"iter_{number}" / name
        return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Killed:
    """One run serves all kills, each followed by the same command.

    The driver is killed while it converts; Ctrl-C stops the training, and later the play. The driver goes on when the
    server is killed, or the trainer that has nothing to do, and fails with exit code 1 when the trainer is killed while
    it trains.
    """
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.yaml").write_text(CONFIG)
    now = Watched(folder / "run")
    drivers: list[Driver] = []

    @contextmanager
    def driver() -> Iterator[Driver]:
        """The command, to its end; it is started as a shell starts background jobs, with SIGINT ignored."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            where = ("--config", str(folder / "config.yaml"), "--output", str(folder / "run"))
            drivers.append(Driver(folder, "iterate", *where))
        finally:
            signal.signal(signal.SIGINT, before)
        yield drivers[-1]
        drivers[-1].assert_nothing_is_left()

    with driver() as killed:
        killed.send_when(signal.SIGKILL, lambda: now.converting(1))
    with driver() as stopped:
        stopped.send_when(signal.SIGINT, lambda: now.saved(1))
        assert stopped.process.returncode == 130, "the wait for the trainer hears Ctrl-C"
    with driver() as going_on:
        going_on.kill_when("train.verl.main", lambda: now.finished(1, "train"))
        going_on.send_when(signal.SIGINT, lambda: now.games(2) >= 3)
        assert going_on.process.returncode == 130, "and so does the play"
    played = now.games(2)
    with driver() as failing:
        failing.kill_when("sglang::scheduler", lambda: now.games(2) > played)
        failing.kill_when("train.verl.main", lambda: now.steps(2) >= 1)
        assert failing.process.wait(1200) == 1, "the training failed, and the command says so"
    with driver() as last:
        assert last.process.wait(1200) == 0, (folder / "driver.log").read_text()[-3000:]
    files_left = [path for driver in drivers for path in driver.files_left()]
    return Killed(now.run, drivers, (folder / "driver.log").read_text(), files_left)


@pytest.mark.parametrize("number", [1, 2])
def test_kill_9_anywhere_loses_nothing_and_repeats_nothing(killed, number):
    """In each stage, between two of them, and of whichever process."""
    iteration, first = killed.run / f"iter_{number}", 6 * (number - 1)
    ids = [record.episode_id for record in read_episodes(iteration / "selfplay_games.jsonl")]
    assert sorted(ids) == [f"s0-g{group:06d}-p{episode}" for group in range(first, first + 6) for episode in range(4)]
    for name in ("train", "val"):
        pq.read_table(iteration / f"{name}.parquet")
    steps = [json.loads(line) for line in (iteration / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    seen = Counter(tuple(group) for step in steps for group in step["groups"])
    expected = {(0, group.index) for group in read_data([iteration / "train.parquet"]).to_train(True)}
    assert seen == Counter(dict.fromkeys(expected, EPOCHS))
    assert (iteration / "checkpoint" / "config.json").exists()


def test_a_process_that_is_killed_is_started_anew_or_the_command_fails_in_one_line(killed):
    said = killed.said
    assert said.count("starting it again with") == 1, "the server"
    assert said.count("selfplay: verl ended with exit code") == 1
    assert said.count("the same command continues") >= 2, "of Ctrl-C"
    assert "Traceback" not in said


def test_no_other_machine_can_reach_a_socket_of_playing_or_of_training(killed):
    commands = " ".join(listener.command for listener in killed.listeners)
    for of_playing_or_training in ("sglang_launch", "sglang::scheduler", "train.verl.main"):
        assert of_playing_or_training in commands
    assert [listener for listener in sorted(killed.listeners) if not listener.is_local] == []


def test_no_other_user_can_look_into_the_folders_of_servers_and_trainers(killed):
    folders = {folder: mode for driver in killed.drivers for folder, mode in driver.watch.scratch.items()}
    assert len(folders) > 1
    assert set(folders.values()) == {"drwx------"}


def test_no_temporary_file_is_left_once_a_killed_command_was_given_again(killed):
    assert killed.files_left == []


def test_no_copy_of_a_checked_file_is_left_in_the_home_directory(killed, tmp_path):
    command = ["convert", "--check", str(killed.run / "iter_1" / "train.parquet")]
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env.pop("HF_HOME", None)
    subprocess.run([sys.executable, "-m", "selfplay_pipeline.cli", *command], env=env, check=True)
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".arrow", ".lock")] == []


def test_kill_9_between_saved_states_ends_in_the_checkpoints_of_an_undisturbed_run(tmp_path):
    """The states of iterations 1 and 2 are not saved; each is made again from its rows after a kill.

    Episodes are sampled without a seed, so the undisturbed run is given those of the killed one.
    """
    config, now = tmp_path / "config.yaml", Watched(tmp_path / "run")
    config.write_text(SELDOM_SAVED)
    again = now.run / "iter_1" / AGAIN
    command = ("iterate", "--config", str(config), "--output", str(now.run))
    between = Driver(tmp_path, *command)
    between.send_when(signal.SIGKILL, lambda: now.finished(1, "train"))
    between.assert_nothing_is_left()
    assert not has_state(now.run / "iter_1" / "trainer_state")
    repeating = Driver(tmp_path, *command)
    repeating.send_when(signal.SIGKILL, lambda: (again / "checkpoint").exists() or has_state(again / "trainer_state"))
    repeating.assert_nothing_is_left()
    last = Driver(tmp_path, *command)
    last.kill_when("train.verl.main", lambda: now.finished(2, "train"))
    assert last.process.wait(1200) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    last.assert_nothing_is_left()
    said = (tmp_path / "driver.log").read_text()
    repeated = [number for number in (1, 2, 3) if f"iteration {number}/3: train again from its rows" in said]
    assert repeated == [1, 2], "those whose states were not saved, and no others"
    assert "slightly other weights" not in said
    assert not again.exists()

    killed, undisturbed = RunDirectory(now.run), RunDirectory(tmp_path / "undisturbed")
    killed.load()

    class TakesEpisodes(Loop):
        async def _generate(self, number, checkpoint):
            self.run.iteration(number).mkdir()
            for one in (killed.games(number), killed.rows(number)):
                shutil.copy(one, self.run.iteration(number))
            return killed.state.played(number)

        async def _convert(self, number, games):
            return killed.state.converted(number)

    asyncio.run(run_iterate(load_config(str(config), {}), undisturbed.path, TakesEpisodes))
    undisturbed.load()
    for number in (1, 2, 3):
        assert content_hash(killed.checkpoint(number)) == content_hash(undisturbed.checkpoint(number))
