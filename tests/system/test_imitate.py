"""Imitation with the real verl: its loss and its steps are plain torch's, and a kill changes nothing."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reports import Reports
from shared_server import TINY, StayingTrainer, loop_with
from test_train import (
    Run,
    build_model,
    distance_of,
    farthest,
    kill_after_two_steps,
    trainable,
    write_games,
)

from bench import qwen
from selfplay_pipeline.cli.show.training import barely_fell
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.imitation import HELD_OUT, Source
from selfplay_pipeline.convert.rows import WEIGHT
from selfplay_pipeline.core import reporting
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.human_episodes import write_people
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.iterate.loop import run_iterate
from selfplay_pipeline.train.imitation import imitate_episodes
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer
from selfplay_pipeline.warm_start.lesson import _untrained

RATE = 1e-3


@pytest.fixture(scope="module")
def games(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model; rows of weights of their own to imitate, and rows that are held out."""
    folder = tmp_path_factory.mktemp("games")
    build_model(folder / "model")
    for name, seed in (("train", 0), ("held_out", 1)):
        write_games(folder / f"{name}.parquet", folder / "model", groups=5, seed=seed)
        table = pq.read_table(folder / f"{name}.parquet")
        table = table.set_column(
            table.schema.get_field_index("sampling_temperature"),
            "sampling_temperature",
            pa.array(np.ones(len(table))),
        )
        weight = pa.array(np.where(np.arange(len(table)) % 3, 0.5, 2.0), pa.float32())
        pq.write_table(table.append_column(WEIGHT, weight), folder / f"{name}.parquet")
    return folder


@pytest.fixture(scope="module")
def trainer() -> Iterator[Trainer]:
    with StayingTrainer() as trainer:
        yield trainer


def training(games: Path, output: Path, **options: Any) -> TrainConfig:
    """One step on all rows, in passes of 3, which do not divide them."""
    return TrainConfig(
        model=str(games / "model"), data=games / "train.parquet", held_out=games / "held_out.parquet", output=output,
        method="filtered-bc", best_of_group=0, train_batch_size=100, micro_batch_size=3, learning_rate=RATE,
        device="cpu",
    ).model_copy(update=options)  # fmt: skip


@pytest.fixture(scope="module")
def one_step(games: Path, trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    config = training(games, tmp_path_factory.mktemp("one_step") / "out")
    return Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())


def imitation_loss(network: Any, data: Path, *, shift: int = 0, weighted: bool = True) -> Any:
    """The mean negative log-prob of own tokens in plain torch."""
    import torch

    loss, tokens = torch.zeros(()), 0
    for row in pq.read_table(data).to_pylist():
        ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
        own = torch.tensor(row["response_mask"], dtype=torch.bool).roll(shift)
        logits = network(ids).logits[0, len(row["prompt_ids"]) - 1 : -1][own]
        losses = torch.nn.functional.cross_entropy(logits, torch.tensor(row["response_ids"])[own], reduction="sum")
        loss = loss + losses * (row[WEIGHT] if weighted else 1.0)
        tokens += int(own.sum())
    return loss / tokens


def test_the_loss_of_a_step_and_of_held_out_rows_is_plain_torchs(one_step: Run) -> None:
    (line,) = one_step.lines()
    network, _ = trainable(one_step.config.model, RATE)
    loss = float(imitation_loss(network, one_step.config.data).detach())
    assert line["selfplay/loss"] == pytest.approx(loss, abs=1e-5)
    assert abs(line["selfplay/loss"] - float(imitation_loss(network, one_step.config.data, shift=1).detach())) > 1e-2
    held_out = Path(str(one_step.config.held_out))
    before, after = one_step.result.held_out_losses
    assert before == pytest.approx(float(imitation_loss(network, held_out, weighted=False).detach()), abs=1e-5)
    trained, _ = trainable(str(one_step.result.checkpoint), RATE)
    assert after == pytest.approx(float(imitation_loss(trained, held_out, weighted=False).detach()), abs=1e-5)
    own = sum(sum(row["response_mask"]) for row in pq.read_table(one_step.config.data).to_pylist())
    assert (one_step.result.rows, one_step.result.updates, one_step.result.own_tokens) == (20, 1, own)


@pytest.mark.parametrize(
    ("spoilt", "agrees"), [({}, True), ({"shift": 1}, False), ({"weighted": False}, False)], ids=str
)
def test_one_step_moves_the_weights_as_a_plain_torch_step_does(
    one_step: Run, spoilt: dict[str, Any], agrees: bool
) -> None:
    """‖Δ - Δref‖ / ‖Δref‖ < 1e-3, and not if the reference is spoilt."""
    data = one_step.config.data
    apart = distance_of(one_step, lambda network: imitation_loss(network, data, **spoilt), RATE)
    assert apart < 1e-3 if agrees else apart > 1e-2


def test_killed_and_continued_it_ends_where_it_would_have_ended(games: Path, trainer: Trainer, tmp_path: Path) -> None:
    """Also the learning rate, which goes up and down, goes on where it was."""
    options = {"epochs": 4, "train_batch_size": 10, "save_every": 1, "schedule": "cosine", "warm_up": 0.3}
    whole = asyncio.run(run_train(training(games, tmp_path / "whole", **options), trainer=trainer))
    config = training(games, tmp_path / "killed", **options)
    kill_after_two_steps(config)
    reports = Reports()
    with reporting.use(reports):
        result = asyncio.run(run_train(config, trainer))
    assert reports.seen[0].done > 1 and result.steps == whole.steps == 8
    assert farthest(result.checkpoint, whole.checkpoint) < 1e-6
    assert result.held_out_losses == pytest.approx(whole.held_out_losses, abs=1e-6)
    assert len(whole.held_out_losses) == 5 and whole.held_out_losses[-1] < whole.held_out_losses[0]
    rates = [line["actor/lr"] / RATE for line in Run(config, result, [], set()).lines()]
    assert rates == pytest.approx([1 / 2, 1, *(0.5 + 0.5 * np.cos(np.pi * np.arange(6) / 6))])


def test_the_first_step_of_a_warm_up_learns_too(games: Path, trainer: Trainer, tmp_path: Path) -> None:
    result = asyncio.run(run_train(training(games, tmp_path / "out", epochs=2, warm_up=1.0), trainer=trainer))
    before, first, second = result.held_out_losses
    assert before - 1e-3 > first > second


def test_an_adapter_imitates_too(games: Path, one_step: Run, tmp_path: Path) -> None:
    config = training(games, tmp_path / "out", lora_rank=4, epochs=3, learning_rate=1e-2)
    result = asyncio.run(run_train(config))
    (first, *_) = Run(config, result, [], set()).lines()
    assert first["selfplay/loss"] == pytest.approx(one_step.lines()[0]["selfplay/loss"], abs=1e-5)
    assert result.held_out_losses[0] == pytest.approx(one_step.result.held_out_losses[0], abs=1e-5)
    assert (result.checkpoint.parent / "adapter").is_dir()
    assert Run(config, result, [], set()).lines()[-1]["selfplay/loss"] < first["selfplay/loss"]


def test_people_are_imitated_and_what_others_of_them_said_becomes_likelier(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a model without any training whose vocabulary holds English, of a context that some of their games exceed."""
    qwen.build(tmp_path / "model", layers=1, tokens=4000, heads=2)
    config = load_config(
        "default",
        {
            "model": str(tmp_path / "model"), "engine.context_length": 1500, "imitate.held_out": 0.25,
            "imitate.train_batch_size": 4, "train.epochs": 2, "imitate.learning_rate": 3e-3,
            "train.gradient_checkpointing": False, "device": "cpu",
        },
    )  # fmt: skip
    everyone, some = tmp_path / "everyone.jsonl", tmp_path / "some.jsonl"
    write_people(make_game(config.game), everyone)
    some.write_text("".join(everyone.read_text().splitlines(keepends=True)[:12]))
    caplog.set_level(logging.INFO, "selfplay_pipeline")
    result = asyncio.run(imitate_episodes(config, [Source(some)], tmp_path / "out", trainer))
    said = caplog.text
    (left_out,) = re.findall(
        r"left out: (\d+) rows, longer than the 1500 tokens of the context \(engine.context_length\)", said
    )
    assert said.count("left out: ") == 1
    held_out = len(pq.read_table(tmp_path / "out" / HELD_OUT))
    assert held_out > 0 and result.rows + held_out + int(left_out) == 2 * 12
    before, *after = result.held_out_losses
    assert len(after) == 2 and before - 1 > after[0] > after[1]


def test_a_random_model_learns_at_the_usual_rate_and_a_low_one_is_warned_of(
    trainer: Trainer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = load_config("tiny_honest", {"generate.num_episodes": 128, "generate.episodes_per_state": 1})
    lesson = make_game(config.game).lessons["self-play"]
    model, played = _untrained(lesson, 0, tmp_path / "model"), tmp_path / "games.jsonl"
    asyncio.run(generate_episodes(config, played, seats=["teacher", "teacher"]))
    config.model, config.imitate.train_batch_size = str(model), 16
    caplog.set_level(logging.INFO, "selfplay_pipeline")
    usual = asyncio.run(imitate_episodes(config, [Source(played)], tmp_path / "usual", trainer))
    assert "learning rate 1.0e-03, by the number of trained weights (954,752)" in caplog.text
    config.imitate.learning_rate = 1e-5
    low = asyncio.run(imitate_episodes(config, [Source(played)], tmp_path / "low", trainer))
    assert usual.held_out_losses[-1] < 0.5 * usual.held_out_losses[0]
    assert (barely_fell(usual), barely_fell(low) is None) == (None, False)


def test_iterate_imitates_the_best_episode_of_each_group(trainer: Trainer, tmp_path: Path) -> None:
    config = load_config(
        "tiny",
        {
            "iterate.num_iterations": 1, "iterate.evaluate_every": 0, "generate.num_episodes": 24,
            "generate.episodes_per_state": 4, "train.method": "filtered-bc", "train.learning_rate": 1e-3,
            "train.train_batch_size": 8, "train.mini_batches": 1, "engine.kind": "transformers",
        },
    )  # fmt: skip
    run = asyncio.run(run_iterate(config, tmp_path / "run", loop_with(trainer)))
    trained = run.state.trained(1)
    assert trained is not None and not trained.carried
    rewards: dict[int, dict[int, float]] = {}
    rows = pq.read_table(run.iteration(1) / "train.parquet").to_pylist()
    for row in rows:
        info = row["extra_info"]
        rewards.setdefault(info["index"], {})[info["episode"]] = row["reward_model"]["normalized_reward"]
    best = {group: max(of, key=lambda episode: (of[episode], -episode)) for group, of in rewards.items()}
    signal = {group for group, of in rewards.items() if len(set(of.values())) > 1}
    infos = [row["extra_info"] for row in rows]
    chosen = [
        row
        for row, info in zip(rows, infos, strict=True)
        if info["index"] in signal and info["episode"] == best[info["index"]]
    ]
    assert (trained.rows, trained.own_tokens) == (len(chosen), sum(sum(row["response_mask"]) for row in chosen))
    assert trained.updates == trained.steps == -(-len(chosen) // 8)
    assert farthest(Path(run.checkpoint(1)), TINY) > 0
