"""What stops a training with the real verl: one line says why, and what was saved before is still there.

`test_online_loop.py` has the numbers that are not finite in a row of a step, and `test_verl_patches.py` a save of
somebody who wants to run code.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import selfplay
from test_train import build_model, write_games

from selfplay_pipeline.config.training import WRITES_ROWS, TrainConfig
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import TRAINING_RECORD
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


def test_a_full_disk_stops_it_and_the_same_command_goes_on(games, small_disk, trainer_without_kl):
    """The disk holds one save of the training and not two."""
    disk = small_disk("1400k")
    config = training(games, disk / "out")
    text = reason(config, trainer_without_kl)
    assert re.search(
        r"trainer_state/global_step_2: the save of step 2 failed: No space left on device \(about \d MB are needed, "
        r"\d MB were free\); make room and give the same command again; the save of step 1 is kept",
        text,
    )
    assert logged(config) == [1] and whole_saves(config) == ["global_step_1"]
    assert sorted(path.name for path in (config.output / "trainer_state").glob("global_step_*")) == ["global_step_1"]

    subprocess.run(["mount", "-o", "remount,size=50m", disk], check=True)
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


def rows_of_another(games: Path, folder: Path) -> Path:
    """Rows with the log-probs of another model that claim to be of the model in `games`.

    So they are if the engine loads another set of weights than the trainer.
    """
    build_model(folder / "other", seed=1)
    write_games(folder / "train.parquet", folder / "other", groups=8)
    return claimed(games, folder / "train.parquet")


def claimed(games: Path, rows: Path) -> Path:
    """Make rows claim that the model in `games` sampled them."""
    table = pq.read_table(rows)
    told = {"checkpoint": str(games / "model"), "weights": content_hash(str(games / "model"))}
    known = json.loads(table.schema.metadata[b"selfplay"]) | told
    pq.write_table(table.replace_schema_metadata({"selfplay": json.dumps(known)}), rows)
    return rows


WAYS = {
    "one update": {"train_batch_size": 1000},
    "several updates, rows written down": {"mini_batches": 2, "overrides": [WRITES_ROWS]},
    "the games' log-probs": {"old_log_probs": "games"},
    "bfloat16, tokens limit a pass": {"dtype": "bfloat16", "max_tokens_per_pass": 200},
    "two processes, an adapter": {"gpus_per_node": 2, "lora_rank": 4},
}
"""Trainings in which the trainer's log-probs come from different passes."""
ROUNDED = {"one update": 1e-4, "bfloat16, tokens limit a pass": 0.3}
"""Ways in which the rows of the model itself are then trained on, with the largest gap that rounding explains."""


@pytest.mark.parametrize("way", WAYS)
def test_log_probs_of_other_weights_stop_it_before_the_first_update(games: Path, tmp_path: Path, way: str) -> None:
    """The rows that the model sampled are trained on with the same settings, into the same folder."""
    config = training(games, tmp_path / "out", data=rows_of_another(games, tmp_path), **WAYS[way])
    with pytest.raises(UserError) as refused:
        asyncio.run(run_train(config))
    print(refused.value)
    said = re.fullmatch(
        rf"{config.data}: its log-probs differ from those of {config.model} by (\S+) nats a token on average, at most "
        r"0\.5 is rounding; nothing was trained\. .* --any-model .*",
        str(refused.value),
    )
    assert said and float(said[1]) > 1
    assert logged(config) == [] and whole_saves(config) == []
    assert not (config.output / "checkpoint").exists() and not (config.output / TRAINING_RECORD).exists()

    if way in ROUNDED:
        result = asyncio.run(run_train(config.model_copy(update={"data": games / "train.parquet"})))
        assert result.log_prob_gap is not None and result.log_prob_gap < ROUNDED[way]


def test_the_command_is_refused_in_one_line_unless_any_model_may_be_trained(games: Path, tmp_path: Path) -> None:
    options = ("--config", "tiny", "--epochs", "1", "--output", str(tmp_path / "out"), "--set", "device=cpu")
    rows = rows_of_another(games, tmp_path)
    done = selfplay("train", str(rows), *options)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith(f"selfplay: {rows}: its log-probs differ")]
    assert selfplay("train", str(rows), *options, "--model", str(games / "model"), "--any-model").returncode == 0
