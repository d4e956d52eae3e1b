"""Training with the real verl: what goes in is what was sampled, what comes out is a trained checkpoint."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from command import next_words, selfplay
from reports import Report, Reports
from test_kill import GONE_WITHIN
from training_rows import training_row, turns_of, write_training_rows

from selfplay_pipeline.config.training import WRITES_ROWS, TrainConfig
from selfplay_pipeline.convert.rows import METADATA_KEY
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.train.groups import read_data
from selfplay_pipeline.train.offline import TrainResult, prepare_training, run_train
from selfplay_pipeline.train.process import Trainer
from selfplay_pipeline.train.verl_overrides import verl_overrides

TEMPERATURE = 0.7
EPISODES = 2
GROUPS = 13
VOCABULARY = 64


def build_model(folder: Path, seed: int = 0, spread: float = 0.4) -> None:
    """A random Qwen2 of about 50,000 parameters whose configuration claims bfloat16, as Qwen's does."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True, initializer_range=spread,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = {"<pad>": 0, "<eos>": 1} | {f"w{number}": number for number in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    wrapped.chat_template = "{% for m in messages %}{{ m['content'] }} <eos>{% endfor %}"
    wrapped.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**saved, "dtype": "bfloat16"}))


@lru_cache
def load(model: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)


def log_probs(model: Path, prompt: list[int], response: list[int]) -> list[float]:
    """Of the response under softmax(logits / temperature), by transformers' own forward pass in float32."""
    import torch

    with torch.no_grad():
        logits = load(model)(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        chosen = torch.log_softmax(logits, -1)[torch.arange(len(response)), torch.tensor(response)]
    values: list[float] = chosen.tolist()
    return values


def write_games(
    path: Path,
    model: Path,
    groups: int = GROUPS,
    alike: tuple[int, ...] = (),
    seed: int = 0,
    stale: float = 0,
    seats: tuple[int, ...] = (0, 1),
) -> None:
    """Random dialogues with random rewards, as `convert` writes them; groups in `alike` score the same throughout.

    Args:
        stale: standard deviation of the stored log-probs around the model's own.
        seats: those that the policy held.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        for episode in range(EPISODES):
            reward = 0.5 if group in alike else round(0.1 + 0.8 * episode + 0.01 * group % 0.1, 3)
            for seat in seats:
                prompt = rng.integers(2, VOCABULARY, rng.integers(5, 30)).tolist()
                mask = [1] * 4 + [0] * int(rng.integers(1, 9)) + [1] * int(rng.integers(1, 12))
                response = rng.integers(2, VOCABULARY, len(mask)).tolist()
                exact = [value + stale * rng.normal() for value in log_probs(model, prompt, response)]
                rows.append(
                    training_row(
                        group, episode, seat, reward, prompt=prompt, response=response, mask=mask,
                        logprobs=[value if own else 0.0 for value, own in zip(exact, mask, strict=True)],
                        episodes_per_state=EPISODES, temperature=TEMPERATURE,
                    )
                )  # fmt: skip
    write_training_rows(path, rows, checkpoint=str(model), weights=content_hash(str(model)))


@dataclass
class Run:
    """A finished training with all that went into it."""

    config: TrainConfig
    result: TrainResult
    seen: list[Report]
    traces: set[str]
    """What ran and lay about while it trained."""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.result.metrics_path.read_text().splitlines()]

    def dumped(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.config.output / "trained_rows.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def farthest(one: Path, other: Path) -> float:
    """Largest difference of any weight."""
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def share_apart(one: Path, other: Path, start: Path) -> float:
    """How far two trainings from `start` ended from each other, as a share of how far the first went (Euclidean).

    One weight with hardly any gradient, of which AdamW makes a part of a step by rounding alone, does not decide it.
    """
    first, second, before = weights(one), weights(other), weights(start)
    apart = sum(float((first[name] - second[name]).double().square().sum()) for name in before)
    way = sum(float((first[name] - before[name]).double().square().sum()) for name in before)
    return math.sqrt(apart / way)


MARK = "TRAINING_OF_THIS_TEST"
"""An environment variable by which the processes of a training are told."""


def traces(output: Path) -> set[str]:
    """Processes of the training that `MARK` names, and the folders in /tmp that they use."""
    found = set()
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if environment.get(MARK) == str(output):
            found |= {f"process {process.pid}", environment.get("SELFPLAY_SCRATCH", f"process {process.pid}")}
    return found


def remaining(seen: set[str]) -> set[str]:
    """Those of the traces that are still there."""
    return {
        trace
        for trace in seen
        if (psutil.pid_exists(int(trace.split()[1])) if trace.startswith("process") else Path(trace).exists())
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "model"
    build_model(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """13 groups with a signal and one without."""
    path = tmp_path_factory.mktemp("data") / "train.parquet"
    write_games(path, model, groups=GROUPS + 1, alike=(5,))
    return path


@pytest.fixture(scope="module")
def staying(trainer_with_kl: Trainer) -> Iterator[Trainer]:
    """One process for the trainings with a KL term, but for the one that is killed; later files have no such ones."""
    yield trainer_with_kl
    trainer_with_kl.stop()


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, model: Path, data: Path) -> Run:
    """Two epochs over 13 groups, 8 at a time, with importance correction and without KL."""
    config = TrainConfig(
        model=str(model), data=data, output=tmp_path_factory.mktemp("plain") / "out", epochs=2, train_batch_size=32,
        learning_rate=3e-3, overrides=[WRITES_ROWS], device="cpu",
    )  # fmt: skip
    left: set[str] = set()
    reports = Reports(lambda _: left.update(traces(config.output)))
    with pytest.MonkeyPatch.context() as patch, reporting.use(reports):
        patch.setenv(MARK, str(config.output))
        return Run(config, asyncio.run(run_train(config)), reports.seen, left)


@pytest.fixture(scope="module")
def trainer(plain: Run, trainer_without_kl: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """One process for the trainings without a KL term that need none of their own; the one before it was killed."""
    folder = tmp_path_factory.mktemp("prepared")
    prepare_training(plain.config.model_copy(update={"output": folder}), trainer_without_kl, folder / "trainer.log")
    assert trainer_without_kl.process_id is not None
    os.kill(trainer_without_kl.process_id, signal.SIGKILL)
    return trainer_without_kl


def test_every_group_with_a_signal_is_trained_on_once_an_epoch(plain: Run) -> None:
    run = plain
    assert run.result.steps == 4
    assert (run.result.groups, run.result.groups_without_signal, run.result.rows) == (13, 1, 13 * 2 * EPISODES)
    assert [len(line["groups"]) for line in run.lines()] == [7, 6, 7, 6]
    seen = Counter(index for line in run.lines() for _, index in line["groups"])
    assert seen == {group: 2 for group in range(GROUPS + 1) if group != 5}
    assert [(report.done, report.total) for report in run.seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert 0 < run.result.seconds_in_steps < run.result.seconds_total


def test_verl_recomputes_the_log_probs_that_were_stored(plain: Run) -> None:
    run = plain
    stored = {
        (row["extra_info"]["index"], row["extra_info"]["episode"], row["extra_info"]["seat"]): row
        for row in pq.read_table(run.config.data).to_pylist()
    }
    first = [row for row in run.dumped() if row["step"] == 1]
    assert len(first) == 7 * 2 * EPISODES
    gaps = []
    for row in first:
        source = stored[row["group"], row["episode"], row["seat"]]
        own = np.array(source["response_mask"], dtype=bool)
        gaps.append(np.array(row["old_log_probs"]) - np.array(source["response_logprobs"])[own])
    assert np.abs(np.concatenate(gaps)).max() < 1e-4
    line = run.lines()[0]
    assert line["selfplay/log_prob_gap/max"] == pytest.approx(np.abs(np.concatenate(gaps)).max(), rel=1e-3)
    assert line["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-4)


def test_advantages_have_zero_mean_in_a_group_and_are_the_same_for_both_seats_of_an_episode(plain: Run) -> None:
    groups: dict[tuple[int, int], dict[int, set[float]]] = {}
    for row in plain.dumped():
        of_episode = groups.setdefault((row["step"], row["group"]), {}).setdefault(row["episode"], set())
        of_episode.update(round(value, 5) for value in row["advantages"])
    assert len(groups) == 2 * GROUPS
    for episodes in groups.values():
        assert sorted(episodes) == list(range(EPISODES))
        assert all(len(values) == 1 for values in episodes.values()), (
            "one advantage for both seats and all their tokens"
        )
        values = [next(iter(episode)) for episode in episodes.values()]
        assert sum(values) == pytest.approx(0, abs=1e-4)
        assert max(values) > 0.5


def grpo_loss(
    network: Any,
    groups: list[list[dict[str, Any]]],
    *,
    reference: Path | None = None,
    kl_coef: float = 0,
    sign: float = 1,
    shift: int = 0,
    importance: bool = True,
    clip: tuple[float, float] | None = None,
    aggregation: str = "token-mean",
) -> Any:
    """GRPO's loss with truncated importance weights in plain torch, of the own tokens of some groups.

    Its value is not PPO's where `clip` is given, but its gradient is.

    Args:
        groups: rows of train.parquet by group.
        reference: of the KL term exp(d) - d - 1 with d = log-prob of the reference - own (Schulman's k3).
        sign, shift, importance: spoil the advantage's sign, move the mask, leave out the weights.
        clip: in place of truncation, tokens whose ratio lies below 1 - the first number (of a negative advantage) or
            above 1 + the second (of a positive one) have no gradient; nor, in verl, has a ratio above 3 of a negative.
        aggregation: how verl's own function makes one loss of the losses of these rows, none of which is padding.
    """
    import torch
    from verl.trainer.ppo.core_algos import agg_loss

    losses = []
    for rows in groups:
        rewards = {row["extra_info"]["episode"]: row["reward_model"]["normalized_reward"] for row in rows}
        spread = torch.tensor(list(rewards.values()))
        for row in rows:
            advantage = sign * (rewards[row["extra_info"]["episode"]] - spread.mean()) / (spread.std() + 1e-6)
            ids = torch.tensor([row["prompt_ids"] + row["response_ids"]])
            own = torch.tensor(row["response_mask"], dtype=torch.bool).roll(shift)
            logits = network(ids).logits[0, len(row["prompt_ids"]) - 1 : -1] / TEMPERATURE
            now = torch.log_softmax(logits, -1).gather(1, torch.tensor(row["response_ids"])[:, None])[own, 0]
            then = torch.tensor(row["response_logprobs"])[own]
            ratio = torch.exp((now.detach() - then).clamp(-20, 20))
            weight = ratio.clamp(max=2.0) if importance else 1.0
            if clip is not None:
                beyond = ratio > 1 + clip[1] if advantage > 0 else (ratio < 1 - clip[0]) | (ratio > 3)
                weight = torch.where(beyond, 0.0, ratio)
            loss = -advantage * weight * torch.exp(now - now.detach())
            if reference is not None:
                exact = torch.tensor(log_probs(reference, row["prompt_ids"], row["response_ids"]))
                apart = (exact[own] - now).clamp(-20, 20)
                loss = loss + kl_coef * (torch.exp(apart) - apart - 1).clamp(-10, 10)
            losses.append(loss)
    own = torch.nn.utils.rnn.pad_sequence([torch.ones_like(loss) for loss in losses], batch_first=True)
    return agg_loss(torch.nn.utils.rnn.pad_sequence(losses, batch_first=True), own, aggregation)


def rows_by_group(data: Path) -> dict[int, list[dict[str, Any]]]:
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in pq.read_table(data).to_pylist():
        rows.setdefault(row["extra_info"]["index"], []).append(row)
    return rows


def optimise(network: Any, optimizer: Any, loss: Any) -> float:
    """One step with clipped gradients; returns the norm before clipping."""
    import torch

    optimizer.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def trainable(model: str, learning_rate: float) -> tuple[Any, Any]:
    """A fresh copy of the model, and its AdamW."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return network, torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.0)


def test_verl_does_what_a_hand_written_loop_does(plain: Run) -> None:
    import torch

    run, rows = plain, rows_by_group(plain.config.data)
    network, optimizer = trainable(run.config.model, 3e-3)
    for line in run.lines():
        loss = grpo_loss(network, [rows[index] for _, index in line["groups"]])
        assert float(loss.detach()) == pytest.approx(line["actor/pg_loss"], abs=1e-3)
        assert optimise(network, optimizer, loss) == pytest.approx(line["actor/grad_norm"], rel=1e-2)
    trained = weights(run.result.checkpoint)
    for name, value in network.state_dict().items():
        if name in trained:
            torch.testing.assert_close(value, trained[name], atol=2e-3, rtol=0)


def test_passes_of_so_many_tokens_train_as_passes_of_so_many_rows(plain: Run, trainer: Trainer, tmp_path: Path) -> None:
    longest = max(
        len(row["prompt_ids"]) + len(row["response_ids"]) for row in pq.read_table(plain.config.data).to_pylist()
    )
    changes = {"output": tmp_path / "out", "max_tokens_per_pass": 2 * longest}
    config = plain.config.model_copy(update=changes)
    run = Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())
    for line, same in zip(run.lines(), plain.lines(), strict=True):
        assert line["groups"] == same["groups"]
        for name in ("actor/pg_loss", "actor/grad_norm", "actor/entropy", "rollout_corr/rollout_is_mean"):
            assert line[name] == pytest.approx(same[name], rel=1e-4, abs=1e-6), name
    assert 0 < farthest(run.result.checkpoint, plain.result.checkpoint) < 1e-4, "other passes round differently"


def test_turns_as_rows_train_as_the_rows_of_their_seats(plain: Run, trainer: Trainer, tmp_path: Path) -> None:
    """The same tokens after the same tokens, in more rows: every token has the same advantage and weight."""
    table = pq.read_table(plain.config.data)
    facts = json.loads(table.schema.metadata[METADATA_KEY])
    data = write_training_rows(tmp_path / "train.parquet", turns_of(table.to_pylist()), **facts)
    config = plain.config.model_copy(update={"output": tmp_path / "out", "data": data})
    run = Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())
    assert run.result.rows == 2 * plain.result.rows and run.result.steps == plain.result.steps
    for line, same in zip(run.lines(), plain.lines(), strict=True):
        assert line["groups"] == same["groups"] and line["selfplay/own_tokens"] == same["selfplay/own_tokens"]
        assert line["actor/pg_loss"] == pytest.approx(same["actor/pg_loss"], abs=1e-6)
        for name in ("actor/grad_norm", "actor/entropy", "rollout_corr/rollout_is_mean"):
            assert line[name] == pytest.approx(same[name], rel=1e-4, abs=1e-6), name
    assert {row["turn"] for row in run.dumped()} == {0, 1}
    assert 0 < farthest(run.result.checkpoint, plain.result.checkpoint) < 1e-4, "other passes round differently"


AGGREGATION = "actor_rollout_ref.actor.loss_agg_mode="


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_rows_that_fill_up_a_batch_do_not_count_in_its_loss(
    plain: Run, trainer: Trainer, tmp_path: Path, aggregation: Any
) -> None:
    """52 rows in passes of at most 5 are filled up to 55. The reference is verl's own function, of the 52 alone."""
    changes = {"epochs": 1, "train_batch_size": GROUPS * 2 * EPISODES, "micro_batch_size": 5}
    config = plain.config.model_copy(
        update={"output": tmp_path / "out", "overrides": [AGGREGATION + aggregation]} | changes
    )
    run = Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())
    (line,) = run.lines()
    assert line["selfplay/rows"] == 52
    rows = rows_by_group(config.data)
    network, optimizer = trainable(config.model, config.learning_rate)
    loss = grpo_loss(network, [rows[index] for _, index in line["groups"]], aggregation=aggregation)
    norm = optimise(network, optimizer, loss)
    print(f"{aggregation}: gradient norm {line['actor/grad_norm']:.6g}, without padding {norm:.6g}")
    assert line["actor/grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert line["actor/pg_loss"] == pytest.approx(float(loss.detach()), rel=1e-5, abs=1e-6)


def test_updates_are_those_that_were_made(plain: Run, trainer: Trainer, tmp_path: Path) -> None:
    """Eight updates of 52 rows are asked for, but in passes of 4 rows seven hold them all."""
    changes = {"epochs": 1, "train_batch_size": GROUPS * 2 * EPISODES, "micro_batch_size": 4, "mini_batches": 8}
    config = plain.config.model_copy(update={"output": tmp_path / "out"} | changes)
    result = asyncio.run(run_train(config, trainer=trainer))
    assert result.updates == optimizer_updates(result.trainer_state)


def master_weights(state: Path) -> dict[str, Any]:
    """The trainer's own weights in a save, in float32."""
    import torch

    (file,) = state.glob("global_step_*/actor/model_world_size_1_rank_0.pt")
    found = torch.load(file, weights_only=False)
    return {name: getattr(value, "_local_tensor", value) for name, value in found.items()}


def test_the_float32_weights_go_on(plain: Run, trainer: Trainer, tmp_path: Path) -> None:
    """Checkpoints are in bfloat16, whose resolution is coarser than an update at this learning rate."""
    config = plain.config.model_copy(
        update={"epochs": 1, "train_batch_size": 64, "learning_rate": 1e-6, "dtype": "bfloat16", "overrides": []}
    )
    states = []
    for number in range(3):
        config = config.model_copy(update={"output": tmp_path / str(number)})
        result = asyncio.run(run_train(config, trainer=trainer))
        assert optimizer_updates(result.trainer_state) == number + 1
        states.append(master_weights(result.trainer_state))
        further = {"model": str(result.checkpoint), "initial_trainer_state": result.trainer_state}
        config = config.model_copy(update=further | {"any_model": True})
    for before, after in itertools.pairwise(states):
        moved = max(float((after[name] - before[name]).abs().max()) for name in before)
        assert 3e-7 < moved < 4e-6, "AdamW's step, not bfloat16's rounding"


def test_verl_accepts_what_it_is_given_for_gpus(model: Path, data: Path, tmp_path: Path) -> None:
    from hydra import compose, initialize_config_module
    from verl.utils.config import validate_config

    config = TrainConfig(
        model=str(model), data=data, output=tmp_path / "out", device="cuda", kl_coef=0.05, gradient_checkpointing=True,
        max_tokens_per_pass=8192, offload="cpu",
    )  # fmt: skip
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", verl_overrides(config, read_data([data]), GROUPS, "cuda"))
    validate_config(composed, use_critic=False, use_reference_policy=True)
    policy = composed.actor_rollout_ref
    assert policy.actor.fsdp_config.offload_policy is True
    assert policy.ref.fsdp_config.model_dtype == "bf16", "else it takes twice the host memory"
    assert (
        policy.actor.use_dynamic_bsz and policy.ref.log_prob_use_dynamic_bsz and policy.rollout.log_prob_use_dynamic_bsz
    )


def test_games_in_which_a_partner_held_a_seat_are_trained_on_row_by_row(
    tmp_path: Path, model: Path, trainer: Trainer
) -> None:
    write_games(tmp_path / "train.parquet", model, seats=(1,))
    config = TrainConfig(
        model=str(model), data=tmp_path / "train.parquet", output=tmp_path / "out",
        train_batch_size=GROUPS * 2 * EPISODES,
        learning_rate=1e-3, overrides=[WRITES_ROWS], device="cpu",
    )  # fmt: skip
    run = Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())
    network, optimizer = trainable(config.model, 1e-3)
    loss = grpo_loss(network, [*rows_by_group(config.data).values()])
    (line,) = run.lines()
    assert len(run.dumped()) == run.result.rows == GROUPS * EPISODES
    assert float(loss.detach()) == pytest.approx(line["actor/pg_loss"], abs=1e-4)
    assert optimise(network, optimizer, loss) == pytest.approx(line["actor/grad_norm"], rel=1e-2)


def test_with_the_games_log_probs_a_token_beyond_the_clip_range_has_no_gradient(
    tmp_path: Path, model: Path, plain: Run, trainer: Trainer
) -> None:
    write_games(tmp_path / "train.parquet", model, stale=0.4)
    config = TrainConfig(
        model=str(model), data=tmp_path / "train.parquet", output=tmp_path / "out",
        train_batch_size=GROUPS * 2 * EPISODES,
        learning_rate=1e-3, old_log_probs="games", device="cpu",
        overrides=["actor_rollout_ref.actor.clip_ratio_low=0.1", "actor_rollout_ref.actor.clip_ratio_high=0.3"],
    )  # fmt: skip
    run = Run(config, asyncio.run(run_train(config, trainer=trainer)), [], set())
    assert distance_from_plain_torch(run, clip=(0.1, 0.3)) < 1e-3
    assert distance_from_plain_torch(run, clip=(0.3, 0.1)) > 1e-2
    assert distance_from_plain_torch(run, clip=None) > 1e-2, "truncated importance weights are another loss"
    (line,) = run.lines()
    assert line["actor/pg_clipfrac"] > 0.2
    assert not any(name.startswith("rollout_corr/") for name in line)
    assert run.result.log_prob_gap == pytest.approx(0.4 * math.sqrt(2 / math.pi), rel=0.25), "how stale they are"
    assert {line["actor/pg_clipfrac"] for line in plain.lines()} == {0.0}, "by default the ratio is 1"


def distance_from_plain_torch(one_step: Run, **options: Any) -> float:
    """‖Δ - Δref‖ / ‖Δref‖ of one step on all groups at learning rate 1e-3."""
    groups = [*rows_by_group(one_step.config.data).values()]
    return distance_of(one_step, lambda network: grpo_loss(network, groups, **options))


def distance_of(one_step: Run, loss: Callable[[Any], Any], rate: float = 1e-3) -> float:
    """‖Δ - Δref‖ / ‖Δref‖ of one step, where Δref is that of plain torch with a loss."""
    import torch

    assert one_step.result.steps == 1
    network, optimizer = trainable(one_step.config.model, rate)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimise(network, optimizer, loss(network))
    trained = weights(one_step.result.checkpoint)
    moved = torch.cat([(trained[name] - before[name]).flatten() for name in trained])
    expected = torch.cat([(network.state_dict()[name] - before[name]).flatten() for name in trained])
    apart = float(torch.linalg.norm(moved - expected) / torch.linalg.norm(expected))
    print(f"relative distance {apart:.2e}")
    return apart


def test_the_checkpoint_is_the_trained_model_in_the_dtype_it_claims(plain: Run) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = plain
    assert farthest(run.result.checkpoint, Path(run.config.model)) > 1e-3
    assert {tensor.dtype for tensor in weights(run.result.checkpoint).values()} == {torch.float32}
    assert json.loads((run.result.checkpoint / "config.json").read_text())["dtype"] == "float32"
    assert AutoModelForCausalLM.from_pretrained(run.result.checkpoint, dtype="auto").dtype == torch.float32
    before, after = (AutoTokenizer.from_pretrained(path) for path in (run.config.model, run.result.checkpoint))
    assert after.chat_template == before.chat_template
    assert after.get_vocab() == before.get_vocab()


def test_nothing_is_left_running_or_lying_about(plain: Run) -> None:
    assert len(plain.traces) == 3, "verl's process, its supervisor, and a folder in /tmp"
    assert not remaining(plain.traces)


def test_a_finished_training_is_not_repeated(plain: Run) -> None:
    run = plain

    class Idle(Trainer):
        async def run(self, *task: Any) -> None:
            raise AssertionError("it was given a task")

    again = asyncio.run(run_train(run.config, trainer=Idle()))
    assert (again.steps, again.checkpoint) == (run.result.steps, run.result.checkpoint)
    with pytest.raises(UserError, match=r"begun with train.learning_rate = 0.003, now it is 1.0"):
        asyncio.run(run_train(run.config.model_copy(update={"learning_rate": 1.0})))


def continued(plain: Run, output: Path) -> TrainConfig:
    """Goes on from `plain` with its optimizer, two updates a step, KL to the very first model, a save a step."""
    return plain.config.model_copy(
        update={
            "model": str(plain.result.checkpoint),
            "any_model": True,
            "output": output,
            "initial_trainer_state": plain.result.trainer_state,
            "reference_model": plain.config.model,
            "kl_coef": 0.01,
            "mini_batches": 2,
            "epochs": 4,
            "save_every": 1,
        }
    )


def optimizer_updates(state: Path) -> int:
    import torch

    (file,) = state.glob("global_step_*/actor/optim_world_size_1_rank_0.pt")
    counts = {int(entry["step"]) for entry in torch.load(file, weights_only=False)["state"].values()}
    assert len(counts) == 1
    return counts.pop()


def kill_after_two_steps(config: TrainConfig) -> set[str]:
    """Kill the driver of a training, of which nothing is left then; returns what ran and lay about before."""
    code = f"""
import asyncio
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.train.offline import run_train
asyncio.run(run_train(TrainConfig.model_validate_json({config.model_dump_json()!r})))
"""
    driver = subprocess.Popen([sys.executable, "-c", code], env=os.environ | {MARK: str(config.output)})
    metrics, running = config.output / "metrics.jsonl", set[str]()
    deadline = time.monotonic() + 1200
    while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        assert driver.poll() is None and time.monotonic() < deadline, (config.output / "train.log").read_text()[-3000:]
        # Looked for before the second step ends, since the look may take as long as the steps that are left.
        running = running or (traces(config.output) if metrics.exists() else running)
        time.sleep(0.02)
    running = running or traces(config.output)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    killed = time.monotonic()
    while remaining(running) and time.monotonic() - killed < GONE_WITHIN:
        time.sleep(0.2)
    assert running and not remaining(running) | traces(config.output), "still there after kill -9 of the driver"
    assert metrics.read_text().count("\n") < 8, "the training was over before the kill"
    return running


@pytest.fixture(scope="module")
def resumed(plain: Run, staying: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A training that was killed after its second step and continued in another process, which was there meanwhile.

    `seen` is what the second call reported.
    """
    config = continued(plain, tmp_path_factory.mktemp("killed") / "out")
    prepare_training(config, staying, config.output.parent / "trainer.log")
    prepared, running, reports = staying.process_id, kill_after_two_steps(config), Reports()
    with reporting.use(reports):
        result = asyncio.run(run_train(config, staying))
    assert staying.process_id == prepared
    return Run(config, result, reports.seen, running)


def test_a_killed_training_is_resumed_and_misses_and_repeats_nothing(resumed: Run) -> None:
    assert resumed.result.steps == 8
    assert resumed.seen[0].done > 1, "resumed at the last save, not from the start"
    seen = Counter(index for line in resumed.lines() for _, index in line["groups"])
    assert seen == {group: 4 for group in range(GROUPS + 1) if group != 5}
    rows = Counter((row["step"], row["group"], row["episode"], row["seat"]) for row in resumed.dumped())
    assert set(rows.values()) == {1} and len(rows) == 4 * GROUPS * 2 * EPISODES

    assert max(line["actor/pg_clipfrac"] for line in resumed.lines()) > 0, "with two updates a batch the clip acts"
    first = resumed.lines()[0]
    assert first["actor/kl_loss"] > 1e-4, "the reference is the first model, not the one that training began with"
    assert optimizer_updates(resumed.result.trainer_state) == 4 + 2 * 8, "the optimizer went on from the earlier one"


def test_a_trainer_that_stays_ends_where_one_that_starts_anew_does(
    plain: Run, resumed: Run, staying: Trainer, tmp_path: Path
) -> None:
    """Another training comes before the one that is compared, and it leaves the device after each."""

    def after(run: TrainResult, name: str, **changes: Any) -> TrainConfig:
        began_with = {"model": str(run.checkpoint), "initial_trainer_state": run.trainer_state, "shares_gpu": True}
        return continued(plain, tmp_path / name).model_copy(update=began_with | changes)

    process = staying.process_id
    first = asyncio.run(run_train(after(plain.result, "other", epochs=1, seed=1), trainer=staying))
    loaded = asyncio.run(run_train(after(plain.result, "loaded"), trainer=staying))
    assert farthest(loaded.checkpoint, resumed.result.checkpoint) < 1e-6, "another training in between left nothing"
    held = asyncio.run(run_train(after(loaded, "held", epochs=1), trainer=staying))
    again = asyncio.run(run_train(after(loaded, "again", epochs=1), trainer=staying))
    assert farthest(held.checkpoint, again.checkpoint) == 0, "what is held in memory is what was saved"
    assert process is not None and staying.process_id == process, "all of it in one process"
    assert farthest(first.checkpoint, loaded.checkpoint) > 1e-4
    slower = asyncio.run(run_train(after(loaded, "slower", epochs=1, learning_rate=3e-5), trainer=staying))
    assert {line["actor/lr"] for line in map(json.loads, slower.metrics_path.open())} == {3e-5}, (
        "its own learning rate, and not that of the optimizer's save"
    )
    assert 0 < farthest(slower.checkpoint, loaded.checkpoint) < farthest(held.checkpoint, loaded.checkpoint) / 30
    assert optimizer_updates(loaded.trainer_state) == 4 + 2 * 8
    assert optimizer_updates(held.trainer_state) == optimizer_updates(again.trainer_state) == 4 + 2 * 8 + 2 * 2
    logs = {training: (training.trainer_state.parent / "train.log").read_text() for training in (held, again)}
    assert "Loaded model" in logs[again] and "Loaded model" not in logs[held] and "Loading weights" not in logs[held]
    for training in (first, loaded, held, again):
        assert len(list(training.trainer_state.glob("global_step_*/actor/model_world_size_1_rank_0.pt"))) == 1
        assert list((training.trainer_state.parent / "tensorboard").iterdir()), "each has its own figures"
        assert "[validate_config]" in (training.trainer_state.parent / "train.log").read_text()
    logs = [(tmp_path / name / "train.log").read_text() for name in ("other", "loaded", "held", "again", "slower")]
    assert 4 <= "".join(logs).count("left the device") <= 5


def test_the_command_ends_with_the_command_that_evaluates_the_checkpoint_and_misses_it_later(
    model: Path, data: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "out" / "checkpoint"
    command = ("train", str(data), "--model", str(model), "--config", "tiny", "--output", str(checkpoint.parent))
    assert next_words(selfplay(*command)) == ["evaluate", str(checkpoint), "--config", "tiny"]
    checkpoint.rename(tmp_path / "moved")  # the last save keeps no second copy of its weights
    for further in ((), ("--dry-run",)):
        done = selfplay(*command, *further)
        assert done.returncode == 2 and "was removed after the training; put it back, or train again" in done.stderr
    (tmp_path / "moved").rename(checkpoint)
    assert selfplay(*command).returncode == 0


@pytest.fixture(scope="module")
def one_step(tmp_path_factory: pytest.TempPathFactory, model: Path, staying: Trainer) -> Run:
    """One step on all groups at learning rate 1e-3, on games of a policy that has since moved on, with a KL term."""
    folder = tmp_path_factory.mktemp("one_step")
    write_games(folder / "train.parquet", model, stale=0.4)
    build_model(folder / "reference", spread=0.41)
    config = TrainConfig(
        model=str(model), data=folder / "train.parquet", output=folder / "out", train_batch_size=GROUPS * 2 * EPISODES,
        learning_rate=1e-3, kl_coef=0.05, reference_model=str(folder / "reference"), device="cpu",
    )  # fmt: skip
    return Run(config, asyncio.run(run_train(config, trainer=staying)), [], set())


@pytest.mark.parametrize(
    ("spoilt", "agrees"),
    [({}, True), ({"sign": -1}, False), ({"shift": 1}, False), ({"importance": False}, False), ({"kl_coef": 0}, False)],
    ids=["as it is", "sign of the advantage flipped", "mask shifted by one", "importance weights left out", "no KL"],
)
def test_one_step_moves_the_weights_as_a_plain_torch_step_does(
    one_step: Run, spoilt: dict[str, Any], agrees: bool
) -> None:
    """‖Δ - Δref‖ / ‖Δref‖ < 1e-3, and not if the reference is spoilt."""
    options = {"reference": Path(str(one_step.config.reference_model)), "kl_coef": 0.05} | spoilt
    apart = distance_from_plain_torch(one_step, **options)
    assert apart < 1e-3 if agrees else apart > 1e-2


def test_a_batch_that_is_one_update_needs_no_pass_for_old_log_probs(
    one_step: Run, tmp_path: Path, staying: Trainer
) -> None:
    """Where rows are written down they are computed before: the update is the same, with importance weights too."""
    config = one_step.config.model_copy(update={"output": tmp_path / "out", "overrides": [WRITES_ROWS]})
    before = Run(config, asyncio.run(run_train(config, trainer=staying)), [], set())
    assert farthest(one_step.result.checkpoint, before.result.checkpoint) < 1e-6
    (line,), (expected,) = one_step.lines(), before.lines()
    assert {name for name in expected if not name.startswith("training/rollout_")} == line.keys()
    weight, gap = "rollout_corr/rollout_is_mean", "selfplay/log_prob_gap/mean"
    assert expected[gap] > 0.1, "the policy has moved on"
    for name in ("actor/loss", "actor/grad_norm", "actor/kl_loss", weight, gap, "selfplay/log_prob_gap/max"):
        assert line[name] == pytest.approx(expected[name], rel=1e-4), name


def test_a_trainer_that_stays_can_begin_with_a_models_own_weights_and_other_settings(
    plain: Run, trainer: Trainer, tmp_path: Path
) -> None:
    """Its process may have done other trainings before; it is the same one for two."""

    def training(name: str, **changes: Any) -> TrainConfig:
        return plain.config.model_copy(update={"output": tmp_path / name} | changes)

    other = asyncio.run(run_train(training("other", learning_rate=1e-3, micro_batch_size=3, seed=2), trainer=trainer))
    process = trainer.process_id
    again = asyncio.run(run_train(training("again"), trainer=trainer))
    assert process is not None and trainer.process_id == process
    assert farthest(again.checkpoint, plain.result.checkpoint) < 1e-6
    assert farthest(other.checkpoint, plain.result.checkpoint) > 1e-4
    assert optimizer_updates(again.trainer_state) == optimizer_updates(plain.result.trainer_state)
