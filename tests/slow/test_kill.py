"""Killed anywhere, the same command continues; whatever ends the driver, nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from watching import Listener, Watch

from selfplay_pipeline.generate.records import read_episodes
from selfplay_pipeline.train.groups import read_data

EPOCHS = 2
CONFIG = f"""\
game: {{size: 3, max_score: 9, scale_min: 1, scale_max: 1, max_length: 20, prompts: compact}}
generate: {{num_episodes: 24, episodes_per_state: 4, temperature: 1.0, max_new_tokens: 48, max_concurrency: 4}}
convert: {{val_fraction: 0.2}}
train: {{epochs: {EPOCHS}, train_batch_size: 16, micro_batch_size: 16, learning_rate: 1.0e-4, save_every: 1,
         keep_zero_signal: true}}
iterate: {{num_iterations: 1, evaluate_states: 8}}
"""
GONE_WITHIN = 15.0


class Driver:
    """`selfplay …` in a process group of its own; all its descendants carry a mark in their environment.

    Watched from its start to `assert_nothing_is_left`.
    """

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.mark = uuid.uuid4().hex
        self.log = (folder / "driver.log").open("ab")
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "selfplay_pipeline", *arguments],
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
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

    def wait_until(self, happened: Callable[[], bool]) -> None:
        while not happened():
            assert self.process.poll() is None, "the driver ended before it could be killed"
            time.sleep(0.002)

    def send_when(self, number: signal.Signals, happened: Callable[[], bool]) -> None:
        self.wait_until(happened)
        os.kill(self.process.pid, number)
        self.process.wait(60)

    def kill_when(self, words: str, happened: Callable[[], bool]) -> None:
        """Kill the process in whose command line these words are, and which is no supervisor."""
        self.wait_until(happened)
        lines = self.processes()
        (found,) = (pid for pid, line in lines.items() if words in line and "core.processes" not in line)
        os.kill(found, signal.SIGKILL)

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


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


@dataclass
class Killed:
    """A run that was killed at each of its stages and then came to its end."""

    run: Path
    drivers: list[Driver]
    files_left: list[Path]
    """By any of the drivers, after the last."""

    @property
    def listeners(self) -> set[Listener]:
        return {listener for driver in self.drivers for listener in driver.watch.listeners}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> Killed:
    folder = tmp_path_factory.mktemp("killed")
    (folder / "config.yaml").write_text(CONFIG)
    run, first = folder / "run", folder / "run" / "iter_1"
    games, state = first / "selfplay_games.jsonl", run / "state.json"

    def finished(stage: str) -> bool:
        return state.exists() and stage in json.loads(state.read_text())["iterations"].get("1", {})

    def some_games() -> bool:
        return games.exists() and games.read_bytes().count(b"\n") >= 3

    def converting() -> bool:
        return any(first.glob(".train.parquet.*.tmp")) or finished("convert")

    def a_saved_step() -> bool:
        return (first / "trainer_state" / "latest_checkpointed_iteration.txt").exists()

    moments: list[Callable[[], bool]] = [
        some_games,
        lambda: finished("generate"),
        converting,
        lambda: finished("convert"),
        a_saved_step,
        lambda: finished("train"),
    ]
    command = ("iterate", "--config", str(folder / "config.yaml"), "--output", str(run))
    drivers: list[Driver] = []
    for moment in moments:
        drivers.append(Driver(folder, *command))
        drivers[-1].send_when(signal.SIGKILL, moment)
        drivers[-1].assert_nothing_is_left()
    last = Driver(folder, *command)
    drivers.append(last)
    assert last.process.wait(300) == 0, (folder / "driver.log").read_text()[-3000:]
    last.assert_nothing_is_left()
    return Killed(run, drivers, [path for driver in drivers for path in driver.files_left()])


def test_kill_9_inside_each_stage_and_at_each_boundary_loses_nothing_and_repeats_nothing(killed):
    first = killed.run / "iter_1"
    games = first / "selfplay_games.jsonl"
    ids = [record.episode_id for record in read_episodes(games)]
    assert sorted(ids) == [f"s0-g{group:06d}-p{episode}" for group in range(6) for episode in range(4)]
    for name in ("train", "val"):
        pq.read_table(first / f"{name}.parquet")
    steps = [json.loads(line) for line in (first / "metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    seen = Counter(tuple(group) for step in steps for group in step["groups"])
    expected = {(0, group.index) for group in read_data([first / "train.parquet"]).to_train(True)}
    assert seen == Counter(dict.fromkeys(expected, EPOCHS))
    assert (first / "checkpoint" / "config.json").exists()


def test_whichever_process_is_killed_the_run_goes_on_or_the_same_command_continues_it(folder):
    """The trainer while it is idle, and while it trains; the server. The other half is the test above."""
    run = folder / "run"
    config = (folder / "config.yaml").read_text().replace("num_iterations: 1", "num_iterations: 2")
    (folder / "config.yaml").write_text(config)
    command = ("iterate", "--config", str(folder / "config.yaml"), "--output", str(run))

    def games(number: int) -> Callable[[], bool]:
        path = run / f"iter_{number}" / "selfplay_games.jsonl"
        return lambda: path.exists() and path.read_bytes().count(b"\n") >= 2

    def a_step(number: int) -> Callable[[], bool]:
        path = run / f"iter_{number}" / "metrics.jsonl"
        return lambda: path.exists() and path.read_bytes().count(b"\n") >= 1

    first = Driver(folder, *command)
    first.kill_when("verl_main", games(1))
    first.kill_when("verl_main", a_step(1))
    assert first.process.wait(60) == 1, "the training failed, and the command says so"
    first.assert_nothing_is_left()
    second = Driver(folder, *command)
    second.kill_when("sglang::scheduler", games(2))
    second.kill_when("verl_main", a_step(2))
    assert second.process.wait(60) == 1
    second.assert_nothing_is_left()
    third = Driver(folder, *command)
    assert third.process.wait(300) == 0, (folder / "driver.log").read_text()[-3000:]
    third.assert_nothing_is_left()
    said = (folder / "driver.log").read_text()
    assert said.count("selfplay: verl ended with exit code") + said.count("selfplay: the training stopped: ") == 2
    assert "Traceback" not in said
    for number in (1, 2):
        iteration = run / f"iter_{number}"
        ids = [record.episode_id for record in read_episodes(iteration / "selfplay_games.jsonl")]
        assert len(ids) == len(set(ids)) == 24
        steps = [json.loads(line) for line in (iteration / "metrics.jsonl").read_text().splitlines()]
        seen = Counter(tuple(group) for step in steps for group in step["groups"])
        expected = {(0, group.index) for group in read_data([iteration / "train.parquet"]).to_train(True)}
        assert seen == Counter(dict.fromkeys(expected, EPOCHS))
    assert not [path for driver in (first, second, third) for path in driver.files_left()]


def test_no_other_machine_can_reach_a_socket_of_playing_or_of_training(killed):
    commands = " ".join(listener.command for listener in killed.listeners)
    for of_playing_or_training in (
        "sglang_launch",
        "sglang::scheduler",
        "verl_main",
    ):
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("in_background", [False, True])
def test_ctrl_c_stops_the_server_and_says_that_the_command_continues(folder, number, in_background):
    output = folder / "out" / "games.jsonl"
    # What a driver inherits from us: shells start background jobs with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN if in_background else signal.SIG_DFL)
    try:
        driver = Driver(folder, "generate", "--config", str(folder / "config.yaml"), "--output", str(output))
    finally:
        signal.signal(signal.SIGINT, before)
    driver.send_when(number, lambda: len(driver.left()) >= 3)
    assert driver.process.returncode == 130
    driver.assert_nothing_is_left()
    assert driver.files_left() == []
    assert "the same command continues" in (folder / "driver.log").read_text()
