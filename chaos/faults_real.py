"""Faults of commands that launch a real SGLang server, and of trainings with the real verl."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM, Signals

import psutil

from chaos.cases import Case
from chaos.faults_disk import small_disk
from chaos.faults_process import KILLED, asked_to_stop
from chaos.outside import Ended, Running
from chaos.runs import problems_of_run, problems_of_training, temporaries
from chaos.scenes import SERVED, SHORT, Command, Scene, configured, disturbed
from chaos.traces import fingerprint

PATIENCE = 420.0
GAMES, EPISODES, EPOCHS = 96, 4, 2
IDS = [f"s0-g{group:06d}-p{episode}" for group in range(GAMES // EPISODES) for episode in range(EPISODES)]
TRAIN = {"epochs": EPOCHS, "train_batch_size": 16, "micro_batch_size": 16, "save_every": 1, "keep_zero_signal": True,
         "loggers": ["console"], "kl_coef": 0.0}  # fmt: skip


def cases(seed: int) -> list[Case]:
    del seed  # the moments are steps of the commands themselves
    return [*_launched(), *_trainings(), *_loops()]


def signal_all(processes: Sequence[psutil.Process], number: Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


# Processes of a launched server: the supervisor, its child the server, and the server's child, the scheduler.

LAUNCHED = Command(
    lambda: (
        "generate", "--config",
        str(configured(generate={"num_episodes": GAMES, "episodes_per_state": EPISODES, "max_concurrency": 2})),
    ),
    contents=False, patience=PATIENCE,
)  # fmt: skip


def _supervisor(scene: Scene) -> list[psutil.Process]:
    return scene.room.find("selfplay_pipeline.core.processes", "sglang_launch")


def _server(scene: Scene) -> list[psutil.Process]:
    supervisors = {process.pid for process in _supervisor(scene)}
    return [process for process in scene.room.find("sglang_launch") if process.pid not in supervisors]


def _scheduler(scene: Scene) -> list[psutil.Process]:
    return scene.room.find("sglang::scheduler")


def _played(scene: Scene) -> int:
    return scene.output.read_bytes().count(b"\n") if scene.output.exists() else 0


def _launched() -> list[Case]:
    def while_playing(find: Callable[[Scene], list[psutil.Process]], number: Signals, scene: Scene) -> Ended:
        running = scene.start()
        scene.expect(running.when(lambda: _played(scene) >= 8), f"it did not play: {running.said[-300:]}")
        found = find(scene)
        scene.expect(bool(found), "there was no such process")
        signal_all(found, number)
        return running.ended(PATIENCE)

    def driver(number: Signals, scene: Scene) -> Ended:
        running = scene.start()
        scene.expect(running.when(lambda: _played(scene) >= 8), f"it did not play: {running.said[-300:]}")
        running.send(number)
        return running.ended(60)

    def while_starting(number: Signals, scene: Scene) -> Ended:
        running = scene.start()
        scene.expect(running.when(lambda: bool(_server(scene))), "the server was not started")
        time.sleep(3)
        running.send(number)
        return running.ended(60)

    survived = {0, 1}
    return [
        disturbed("launched server", name, LAUNCHED, cause, codes, check=_all_played, quotes=True)
        for name, cause, codes in (
            ("server-supervisor-killed", partial(while_playing, _supervisor, SIGKILL), survived),
            ("server-killed", partial(while_playing, _server, SIGKILL), survived),
            ("server-scheduler-killed", partial(while_playing, _scheduler, SIGKILL), survived),
            ("server-scheduler-hung", partial(while_playing, _scheduler, SIGSTOP), survived),
            ("server-hung", partial(while_playing, _server, SIGSTOP), survived),
            ("driver-killed-while-the-server-starts", partial(while_starting, SIGKILL), KILLED),
            ("sigint-while-the-server-starts", partial(while_starting, SIGINT), {130}),
            ("driver-killed-while-the-server-plays", partial(driver, SIGKILL), KILLED),
            ("sighup-while-the-server-plays", partial(driver, SIGHUP), asked_to_stop(SIGHUP)),
        )
    ]  # fmt: skip


def _all_played(scene: Scene) -> list[str]:
    found = fingerprint(scene.written, contents=False).get("games.jsonl", Counter())
    missing = [episode for episode in IDS if found[episode] == 0]
    twice = [episode for episode, count in found.items() if count > 1 or episode not in IDS]
    return [*([f"{len(missing)} episodes are missing, such as {missing[0]}"] if missing else []),
            *([f"{len(twice)} episodes are twice or others, such as {twice[0]}"] if twice else []),
            *temporaries(scene.written)]  # fmt: skip


# Processes of a training: the supervisor, verl's main process, Ray's daemons and workers.


ROWS = Command(lambda: ("convert", str(SERVED.made), "--config", "tiny"), output="out")
"""Rows of episodes that were played with the fake server."""
TRAINING = Command(
    lambda: ("train", str(ROWS.made / "train.parquet"), "--config", str(configured(train=TRAIN))),
    output="out",
    patience=PATIENCE,
)


def _steps(scene: Scene) -> int:
    metrics = scene.written / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def _trainings() -> list[Case]:
    def at_a_step(find: Callable[[Scene], list[psutil.Process]], number: Signals, scene: Scene) -> Ended:
        running = scene.start()
        scene.expect(running.when(lambda: _steps(scene) >= 2), f"it did not train: {running.said[-300:]}")
        found = find(scene)
        scene.expect(bool(found), "there was no such process")
        signal_all(found, number)
        return running.ended(PATIENCE)

    def the_driver(number: Signals, scene: Scene) -> Ended:
        running = scene.start()
        scene.expect(running.when(lambda: _steps(scene) >= 2), f"it did not train: {running.said[-300:]}")
        running.send(number)
        return running.ended(60)

    def beside_another(scene: Scene) -> Ended:
        running = scene.start()
        running.when(lambda: (scene.written / "trainer_state").exists())
        scene.refused(*scene.line)
        return running.ended(PATIENCE)

    def on_a_small_disk(scene: Scene) -> Ended:
        return scene.run(before=small_disk(scene, 20_000))

    def find(*words: str) -> Callable[[Scene], list[psutil.Process]]:
        return lambda scene: scene.room.find(*words)

    failed = {1}
    faults: list[tuple[str, Callable[[Scene], Ended], set[int]]] = [
        ("train-driver-killed", partial(the_driver, SIGKILL), KILLED),
        ("train-sigterm", partial(the_driver, SIGTERM), asked_to_stop(SIGTERM)),
        ("train-supervisor-killed", partial(at_a_step, find("selfplay_pipeline.core.processes"), SIGKILL), failed),
        ("train-verl-killed", partial(at_a_step, _verl, SIGKILL), failed),
        ("train-worker-killed", partial(at_a_step, find("ray::Worker"), SIGKILL), failed),
        ("train-disk-full", on_a_small_disk, failed),
        ("train-beside-train", beside_another, {0}),
    ]
    return [
        disturbed("training", name, TRAINING, cause, codes, check=_trained, quotes=True)
        for name, cause, codes in faults
    ]


def _verl(scene: Scene) -> list[psutil.Process]:
    supervisors = {process.pid for process in scene.room.find("selfplay_pipeline.core.processes")}
    return [process for process in scene.room.find("train.verl.main") if process.pid not in supervisors]


def _trained(scene: Scene) -> list[str]:
    return [*problems_of_training(scene.written, ROWS.made, EPOCHS), *temporaries(scene.written)]


# The whole loop, with other commands at work in its folder.

LOOP = Command(
    lambda: (
        "iterate", "--num-iterations", "1", "--config",
        str(configured(game={"max_length": 4}, generate=SHORT, train=TRAIN, iterate={"evaluate_states": 4})),
    ),
    output="out", served=True, patience=PATIENCE,
)  # fmt: skip


def _loops() -> list[Case]:
    def with_neighbours(scene: Scene) -> Ended:
        running: Running = scene.start()
        games = scene.output / "iter_1" / "selfplay_games.jsonl"
        running.when(lambda: games.exists() and games.stat().st_size > 0)
        scene.refused(*scene.line)
        running.when(lambda: (games.parent / "train.log").exists())
        for looking in (("report", str(scene.output)), ("show", str(games)), (*scene.line, "--dry-run")):
            ended = scene.room.run(*looking)
            scene.expect(ended.code == 0, f"{looking[0]} ended with {ended.code}: {ended.message or ended.err[-200:]}")
        running.when(lambda: (games.parent / "metrics.jsonl").exists())
        running.send(SIGKILL)
        return running.ended()

    name = "iterate-with-neighbours-killed-while-training"
    return [disturbed("concurrent", name, LOOP, with_neighbours, KILLED, check=_looped)]


def _looped(scene: Scene) -> list[str]:
    ids = [f"s0-g{group:06d}-p{episode}" for group in range(12) for episode in range(4)]
    return problems_of_run(scene.output, 1, ids, EPOCHS)
