"""Training processes on the nodes of a Ray cluster train as one does; `test_lora.py` has several on one machine."""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from shared_server import TINY, StayingTrainer
from test_kill import Driver
from test_train import build_model, farthest, share_apart, write_games
from two_nodes import TwoNodes, two_nodes

from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.train.offline import TrainResult, prepare_training, run_train
from selfplay_pipeline.train.process import Trainer

STEPS = 3
HOW = ("time", "timing_", "perf/", "actor/perf/", "global_seqlen/", "rollout_corr/", "prompt_length/clip_ratio")
"""Beginnings of the names of figures that say how a step was computed, not what.

verl averages those of rollout_corr/ over the passes of each process, rows of padding included; of their means, that of
the importance weights is exact.
"""
EXACT = "rollout_corr/rollout_is_mean"
LARGEST = "selfplay/max_tokens_of_a_pass"
"""Tokens of the largest pass, which differ from one way of computing to another too."""
LIMIT = 100
"""Most tokens of a pass where they are limited."""


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """13 groups in three steps, with importance weights and a KL term to the model as it was.

    One process fills up a step of 20 rows, and two do not; the loss is a mean over rows.
    """
    folder = tmp_path_factory.mktemp("cluster")
    build_model(folder / "model")
    write_games(folder / "train.parquet", folder / "model", stale=0.1)
    return TrainConfig(
        model=str(folder / "model"), data=folder / "train.parquet", output=folder / "one", train_batch_size=20,
        learning_rate=1e-3, kl_coef=0.5, save_every=1, device="cpu", 
        overrides=["actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean"],
    )  # fmt: skip


def figures(output: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in line if name == EXACT or not name.startswith(HOW)} for line in lines]


@dataclass
class Expected:
    """What one process does."""

    config: TrainConfig
    result: TrainResult

    def is_done_by(self, checkpoint: Path, limit: int | None = None) -> None:
        """Figures to 1e-4, weights to a thousandth of the way that they went; passes have at most `limit` tokens."""
        lines, others = figures(self.config.output), figures(checkpoint.parent)
        assert [line["step"] for line in others] == [line["step"] for line in lines] == [1, 2, 3]
        for line, of_other in zip(lines, others, strict=True):
            assert line.pop(LARGEST) > LIMIT
            assert 0 < of_other.pop(LARGEST) <= (limit or math.inf)
            groups = line.pop("groups")
            assert of_other.pop("groups") == groups
            assert of_other == pytest.approx(line, rel=1e-4, abs=1e-4)
        assert lines[-1]["actor/kl_loss"] > 1e-3
        start = Path(self.config.model)
        assert share_apart(self.result.checkpoint, checkpoint, start) < 1e-3
        assert farthest(self.result.checkpoint, start) > 1e-3


@pytest.fixture(scope="module")
def one(training: TrainConfig, trainer_with_kl: Trainer) -> Expected:
    return Expected(training, asyncio.run(run_train(training, trainer=trainer_with_kl)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[TwoNodes]:
    with pytest.MonkeyPatch.context() as patch, two_nodes(patch.setenv) as cluster:
        yield cluster


@dataclass
class Joined:
    """Two trainings, one after the other, by a process that joined the cluster.

    Their passes hold packed rows, as on GPUs, the second training's no more tokens than the limit; the one process of
    `Expected` pads its own.
    """

    config: TrainConfig
    result: TrainResult
    processes: list[int | None]
    """The trainer's, in the one training and in the other."""
    again: TrainResult
    refused: str
    """What another training was told meanwhile."""


@pytest.fixture(scope="module")
def joined(cluster: TwoNodes, training: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Joined:
    folder, before = tmp_path_factory.mktemp("joined"), cluster.state()
    packed = [*training.overrides, "actor_rollout_ref.model.use_remove_padding=true"]
    where = {"output": folder / "out", "nodes": 2, "ray_address": cluster.address, "overrides": packed}
    config = training.model_copy(update=where)
    with StayingTrainer() as trainer:
        prepare_training(config, trainer, folder / "trainer.log")
        result = asyncio.run(run_train(config, trainer=trainer))
        processes = [trainer.process_id]
        further = config.model_copy(update={"output": folder / "again", "max_tokens_per_pass": LIMIT})
        again = asyncio.run(run_train(further, trainer=trainer))
        processes.append(trainer.process_id)
        with pytest.raises(UserError) as meanwhile:
            asyncio.run(run_train(config.model_copy(update={"output": folder / "meanwhile"})))
    cluster.settles_at(before)
    return Joined(config, result, processes, again, str(meanwhile.value))


def test_two_nodes_do_what_one_process_does(one: Expected, joined: Joined) -> None:
    one.is_done_by(joined.result.checkpoint)


def test_a_trainer_that_stays_in_a_cluster_trains_again_in_passes_of_so_many_tokens(
    one: Expected, joined: Joined
) -> None:
    assert joined.processes[0] is not None and joined.processes[0] == joined.processes[1]
    one.is_done_by(joined.again.checkpoint, LIMIT)


def test_a_cluster_takes_one_training_at_a_time(joined: Joined, cluster: TwoNodes) -> None:
    """verl's data store has one name in a cluster, so that a second training would use the first one's."""
    assert joined.refused.startswith(f"train.ray_address {cluster.address}: another training of verl's runs in this")


def test_a_save_has_the_shards_of_both_nodes(joined: Joined) -> None:
    saved = joined.result.trainer_state / f"global_step_{STEPS}" / "actor"
    assert len(list(saved.glob("optim_world_size_2_rank_*.pt"))) == 2
    wrong = joined.config.model_copy(
        update={"output": joined.config.output / "x", "nodes": 3, "initial_trainer_state": joined.result.trainer_state}
    )
    with pytest.raises(UserError, match=r"another number of training processes than nodes=3 × gpus_per_node=1"):
        asyncio.run(run_train(wrong))


@pytest.mark.skipif(os.geteuid() != 0, reason="hiding a folder from a node takes root")
def test_a_node_that_cannot_see_a_folder_is_refused(cluster: TwoNodes, training: TrainConfig, tmp_path: Path) -> None:
    """One node sees neither the folder to write nor the model."""
    hidden, before = tmp_path / "hidden", cluster.state()
    shutil.copytree(training.model, hidden / "model")
    (hidden / "output").mkdir()
    cluster.ask(f"blind {hidden}")
    model, output = str(hidden / "model"), hidden / "output" / "out"
    where = {"model": model, "output": output, "ray_address": cluster.address}
    with pytest.raises(UserError) as refused:
        asyncio.run(run_train(training.model_copy(update=where)))
    assert str(refused.value).startswith((f"{model}: the node ", f"{output}: the node "))
    assert "of the Ray cluster sees there: No such file or directory" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert list(output.parent.iterdir()) == []
    cluster.ask("alone")
    cluster.settles_at(before)


def test_an_address_where_nothing_answers_is_refused(training: TrainConfig, tmp_path: Path) -> None:
    config = training.model_copy(update={"output": tmp_path / "out", "ray_address": "127.0.0.1:1"})
    with pytest.raises(UserError, match=r"train.ray_address 127.0.0.1:1: nothing answers there"):
        asyncio.run(run_train(config))


ONLINE = """\
base: tiny
game: {size: 3, max_score: 9, scale_max: 1, max_length: 20, max_errors: 1, prompts: compact}
generate: {episodes_per_state: 8, temperature: 0.8, max_new_tokens: 64}
train: {learning_rate: 3.0e-4, kl_coef: 0.05}
online: {steps: 9, states_per_step: 2}
evaluate: {monitor_states: 2}
"""


@dataclass
class Online:
    """`train-online` on both nodes, stopped with Ctrl-C after two of its steps; it leaves the cluster as it was."""

    run: Path
    stopped: Driver
    during: dict[str, Any]
    """The cluster while it trained."""


@pytest.fixture(scope="module")
def online(cluster: TwoNodes, tmp_path_factory: pytest.TempPathFactory) -> Online:
    folder, before, during = tmp_path_factory.mktemp("online"), cluster.state(), dict[str, Any]()
    (folder / "config.yaml").write_text(ONLINE)
    where = ("--set", "train.nodes=2", "--set", f"train.ray_address={cluster.address}", "--output", str(folder / "run"))
    driver = Driver(folder, "train-online", "--model", str(TINY), "--config", str(folder / "config.yaml"), *where)
    metrics = folder / "run" / "metrics.jsonl"

    def two_steps_are_done() -> bool:
        if not metrics.exists() or metrics.read_bytes().count(b"\n") < 3:
            return False
        during.update(cluster.state())
        return True

    driver.send_when(signal.SIGINT, two_steps_are_done)
    driver.assert_nothing_is_left()
    cluster.settles_at(before)
    return Online(folder / "run", driver, during)


def test_online_each_node_has_a_server_with_the_newest_weights(online: Online) -> None:
    assert [line["step"] for line in figures(online.run)][:3] == [0, 1, 2]
    servers = [(online.run / f"server_{rank}_weights.jsonl").read_text().splitlines() for rank in range(2)]
    answers = [[json.loads(line)["probe_logprob"] for line in lines] for lines in servers]
    steps = min(map(len, answers))  # one may have got the next weights when it was stopped
    one, other = (of_server[:steps] for of_server in answers)
    assert one == pytest.approx(other, abs=1e-5)
    assert len({round(value, 6) for value in one}) == steps >= 3, "each step has other weights"
    for line in figures(online.run)[1:]:
        assert line["training/rollout_probs_diff_max"] < 1e-4, "those of the trainer"


def test_ctrl_c_leaves_the_cluster_as_it_was(online: Online) -> None:
    """That it was the same before and after, the fixture has seen."""
    assert online.stopped.process.returncode == 130
    assert sum("WorkerDict" in name for name in online.during["actors"]) == 2
    assert "TransferQueueController" in online.during["actors"]
    assert len(online.during["groups"]) >= 2, "verl's placement groups"
    assert len(online.during["drivers"]) == 1
    assert sorted(gpus for _, gpus in online.during["free"].values()) == [0, 0], "a process on each node"
