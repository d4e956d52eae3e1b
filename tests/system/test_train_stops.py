"""What stops a training with the real verl: one line says why, and what was saved before is still there.

`test_online_loop.py` has the numbers that are not finite in a row of a step, and `test_verl_patches.py` a save of
somebody who wants to run code.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_train import build_model, write_games

from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer, TrainError


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("games")
    build_model(folder / "model")
    write_games(folder / "train.parquet", folder / "model", groups=8)
    return folder


def training(games: Path, output: Path, **options: object) -> TrainConfig:
    """Two steps over all eight groups, a save after each."""
    return TrainConfig(
        model=str(games / "model"), data=games / "train.parquet", output=output, epochs=2, train_batch_size=32,
        learning_rate=1e-4, save_every=1, loggers=["console"], device="cpu",
    ).model_copy(update=options)  # fmt: skip


def reason(config: TrainConfig, trainer: Trainer) -> str:
    """Why the training stopped, which ends its process; one line, and no file of it is left."""
    with pytest.raises(TrainError) as stopped:
        asyncio.run(run_train(config, trainer=trainer))
    text = str(stopped.value)
    print(text)
    assert "\n" not in text
    assert trainer.process_id is None
    assert not (config.output / "trainer_state" / "reason.txt").exists()
    return text


def logged(config: TrainConfig) -> list[int]:
    path = config.output / "metrics.jsonl"
    return [json.loads(line)["step"] for line in path.read_text().splitlines()] if path.exists() else []


def whole_saves(config: TrainConfig) -> list[str]:
    return sorted(path.parent.name for path in config.output.glob("trainer_state/*/whole.json"))


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


def test_a_full_disk_stops_it_and_the_same_command_goes_on(
    games: Path, small_disk: Path, trainer_without_kl: Trainer
) -> None:
    config = training(games, small_disk / "out")
    text = reason(config, trainer_without_kl)
    assert re.search(
        r"trainer_state/global_step_2: the save of step 2 failed: No space left on device \(about \d MB are needed, "
        r"\d MB were free\); make room and give the same command again; the save of step 1 is kept",
        text,
    )
    assert logged(config) == [1] and whole_saves(config) == ["global_step_1"]
    assert sorted(path.name for path in (config.output / "trainer_state").glob("global_step_*")) == ["global_step_1"]

    subprocess.run(["mount", "-o", "remount,size=50m", small_disk], check=True)
    result = asyncio.run(run_train(config, trainer=trainer_without_kl))
    assert result.steps == 2 and logged(config) == [1, 2]
    assert (result.checkpoint / "model.safetensors").exists()


def test_an_update_that_breaks_the_weights_stops_before_the_next_one_is_logged(
    games: Path, tmp_path: Path, trainer_without_kl: Trainer
) -> None:
    """At learning rate 1e30 the first update leaves weights whose log-probs are not numbers."""
    config = training(games, tmp_path / "out", learning_rate=1e30)
    text = reason(config, trainer_without_kl)
    assert re.search(r"step 2: the update is not finite \(.*actor/grad_norm nan.*\); the save of step 1 is kept", text)
    assert logged(config) == [1]
    assert whole_saves(config) == ["global_step_1"]
    assert not (config.output / "checkpoint").exists()
