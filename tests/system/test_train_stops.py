"""What stops a training with the real verl: one line says why, and what was saved before is still there."""

from __future__ import annotations

import asyncio
import json
import math
import os
import pickle
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from command import SUPPORT
from shared_server import StayingTrainer
from test_train import build_model, write_games

from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer, TrainError

SPOILT_ROW = 6 * 4 + 3
"""Of group 6, episode 1, seat 1: two episodes of two seats come before it in its group."""


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("games")
    build_model(folder / "model")
    write_games(folder / "train.parquet", folder / "model", groups=8)
    return folder


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    """One process for the training that succeeds and the one after it."""
    with StayingTrainer() as trainer:
        yield trainer


def training(games: Path, output: Path, **options: object) -> TrainConfig:
    """Two steps over all eight groups, a save after each."""
    return TrainConfig(
        model=str(games / "model"), data=games / "train.parquet", output=output, epochs=2, train_batch_size=32,
        learning_rate=1e-4, save_every=1, loggers=["console"], device="cpu",
    ).model_copy(update=options)  # fmt: skip


def reason(config: TrainConfig, trainer: Trainer | None = None) -> str:
    """Why the training stopped; one line, and no file of it is left."""
    with pytest.raises(TrainError) as stopped:
        asyncio.run(run_train(config, trainer=trainer))
    text = str(stopped.value)
    print(text)
    assert "\n" not in text
    assert not (config.output / "trainer_state" / "reason.txt").exists()
    return text


def logged(config: TrainConfig) -> list[int]:
    path = config.output / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def whole_saves(config: TrainConfig) -> list[str]:
    return sorted(path.parent.name for path in config.output.glob("trainer_state/*/whole.json"))


def test_a_log_prob_that_is_not_a_number_is_named_with_its_row(
    games: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("SPOILT_GAME", "t-g000006-p1")
    replay = "++actor_rollout_ref.rollout.agent.agent_loop_manager_class=spoilt_replay.SpoiltReplay"
    config = training(games, tmp_path / "out", overrides=[replay])
    assert (
        f"step 1: the engine's log-probs of {config.data}, row {SPOILT_ROW} (t-g000006-p1, seat 1): nan is not "
        "finite (1 of 32 rows of the step are like this); nothing was saved"
    ) in reason(config)
    assert logged(config) == [] and whole_saves(config) == []


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0])
def test_a_temperature_that_cannot_be_stops_before_anything_is_computed(temperature: float) -> None:
    from selfplay_pipeline.train.stopped import TrainingStopped
    from selfplay_pipeline.train.verl.guard import Guarded

    class Computes:
        def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
            raise AssertionError("verl computes with it")

    class Trains(Guarded, Computes):
        config = SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(temperature=temperature)))
        global_steps = 1

    with pytest.raises(TrainingStopped, match=f"step 1: the sampling temperature is {temperature}"):
        Trains()._compute_old_log_prob(None, {})


class Hostile:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (str(self.file),)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk that holds one save of the training and not two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", disk]).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield disk
    # Lazily: the trainer that stays still has its log open there.
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_full_disk_and_a_hostile_state_stop_it_and_then_it_goes_on_to_the_same_end(
    games: Path, small_disk: Path, tmp_path: Path, trainer: Trainer
) -> None:
    config = training(games, small_disk / "out")
    text = reason(config)
    assert re.search(
        r"trainer_state/global_step_2: the save of step 2 failed: No space left on device \(about \d MB are needed, "
        r"\d MB were free\); make room and give the same command again; the save of step 1 is kept",
        text,
    )
    assert logged(config) == [1] and whole_saves(config) == ["global_step_1"]
    assert sorted(path.name for path in (config.output / "trainer_state").glob("global_step_*")) == ["global_step_1"]

    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    elsewhere = tmp_path / "from_somebody"
    shutil.copytree(config.output, elsewhere / "out")
    (shard,) = (elsewhere / "out" / "trainer_state").glob("*/actor/optim_*.pt")
    torch.save({"state": Hostile(tmp_path / "ran")}, shard)
    (shard.parent.parent / "data.pt").write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    somebodys = config.model_copy(update={"output": elsewhere / "out"})
    assert "this trainer state cannot be loaded: it asks for posix.mkdir, which may be code" in reason(somebodys)
    assert not (tmp_path / "ran").exists()

    result = asyncio.run(run_train(config, trainer=trainer))
    assert result.steps == 2 and logged(config) == [1, 2]
    assert (result.checkpoint / "model.safetensors").exists()


def test_an_update_that_breaks_the_weights_stops_before_the_next_one_is_logged(
    games: Path, tmp_path: Path, trainer: Trainer
) -> None:
    """At learning rate 1e30 the first update leaves weights whose log-probs are not numbers.

    A failing task is the last one of its process, so that this test is the last one.
    """
    config = training(games, tmp_path / "out", overrides=["actor_rollout_ref.actor.optim.lr=1e30"])
    text = reason(config, trainer)
    assert re.search(r"step 2: the update is not finite \(.*actor/grad_norm nan.*\); the save of step 1 is kept", text)
    assert logged(config) == [1]
    assert whole_saves(config) == ["global_step_1"]
    assert not (config.output / "checkpoint").exists()
    assert trainer.process_id is None
