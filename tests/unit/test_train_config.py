"""What the options of training become in verl, and which data is refused. No torch, no verl."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.rows import SCHEMA
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.signal import Signal
from selfplay_pipeline.train.groups import (
    NoSignalError,
    TrainData,
    by_length,
    mixed,
    plan_steps,
    read_data,
    split_rows,
    to_groups,
    updates_of,
)
from selfplay_pipeline.train.offline import check_training, export_of, run_train
from selfplay_pipeline.train.verl_overrides import (
    can_be_packed,
    check_overrides,
    environment,
    plan_for,
    verl_overrides,
    worker_threads,
)

DATA = TrainData(
    groups=[],
    signal=Signal(0, 0),
    temperature=0.7,
    episodes_per_state=2,
    num_rows=52,
    max_prompt_tokens=300,
    max_response_tokens=900,
)


def config(**changes: Any) -> TrainConfig:
    usual = {
        "model": "Qwen/Qwen2.5-7B-Instruct",
        "data": Path("train.parquet"),
        "output": Path("out"),
        "any_model": True,
    }
    return TrainConfig(**usual | changes)


def overrides(device: Any, num_groups: int = 13, **changes: Any) -> dict[str, str]:
    return dict(line.split("=", 1) for line in verl_overrides(config(**changes), DATA, num_groups, device))


INFO = ("index", "episode", "seat", "episodes_per_state", "group_rows")


def write(
    path: Path,
    rewards: list[list[float]],
    episodes_per_state: int = 2,
    temperature: float = 0.7,
    seats: tuple[int, ...] = (0, 1),
    **extra: Any,
) -> Path:
    """Write one group per list of rewards, a row per reward and seat."""
    rows = [
        {
            "data_source": "dialop_matching_selfplay",
            "reward_model": {"normalized_reward": reward},
            "extra_info": dict(
                zip(INFO, (group, episode, seat, episodes_per_state, len(episodes) * len(seats)), strict=True)
            ),
            "prompt": [{"role": "user", "content": "hello"}],
            "prompt_ids": [1] * (3 + group),
            "response_ids": [2] * (4 + episode),
            "response_mask": [1] * (4 + episode),
            "response_logprobs": [-1.0] * (4 + episode),
            "sampling_temperature": temperature,
        }
        for group, episodes in enumerate(rewards)
        for episode, reward in enumerate(episodes)
        for seat in seats
    ]
    schema = pa.schema(
        {
            "data_source": pa.string(),
            "reward_model": pa.struct({"normalized_reward": pa.float64()}),
            "extra_info": pa.struct(dict.fromkeys(INFO, pa.int64())),
            "prompt": SCHEMA.field("prompt").type,
            "prompt_ids": pa.list_(pa.int32()),
            "response_ids": pa.list_(pa.int32()),
            "response_mask": pa.list_(pa.int8()),
            "response_logprobs": pa.list_(pa.float32()),
            "sampling_temperature": pa.float64(),
        },
        metadata={b"selfplay": json.dumps({"temperature": temperature, **extra}).encode()},
    )
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    return path


ACTOR, MODEL, CORRECTION = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "algorithm.rollout_correction."
FSDP = "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
TOLD = {
    "offline GRPO at the temperature of the games": ("cpu", {}, {
        "algorithm.adv_estimator": "grpo", "trainer.v1.trainer_mode": "offline", "trainer.test_freq": "-1",
        "actor_rollout_ref.rollout.temperature": "0.7", "data.max_prompt_length": "300",
        "data.max_response_length": "900", "+selfplay.dump_rows": "null", ACTOR + "use_kl_loss": "false",
    }),
    "importance weights are truncated per token": ("cpu", {"mini_batches": 2}, {
        CORRECTION + "rollout_is": "token", CORRECTION + "rollout_is_threshold": "2.0",
        CORRECTION + "bypass_mode": "false",
    }),
    # verl's bypass mode: PPO's ratio is to the stored log-probs, and no importance weights are computed
    "log-probs of the games are the old ones": ("cpu", {"old_log_probs": "games"}, {
        CORRECTION + "bypass_mode": "true",
    }),
    "options": ("cpu", {
        "learning_rate": 3e-4, "kl_coef": 0.02, "gpus_per_node": 2, "loggers": ["console", "tensorboard"],
        "reference_model": "first", "mini_batches": 3, "gradient_checkpointing": True, "model": "/models/a b/c=d",
    }, {
        ACTOR + "optim.lr": "0.0003", ACTOR + "use_kl_loss": "true", ACTOR + "kl_loss_coef": "0.02",
        "+actor_rollout_ref.reference_model": "first", ACTOR + "optim.weight_decay": "0.0",
        MODEL + "enable_gradient_checkpointing": "true", "trainer.logger": '["console", "tensorboard"]',
        "trainer.n_gpus_per_node": "2", MODEL + "path": '"/models/a b/c=d"',
        "+selfplay.groups_per_update": str(16 / 3),  # of 16 groups of 4 rows
    }),
    "an adapter is verl's own and is saved alone": ("cpu", {"lora_rank": 8, "lora_alpha": 32, "kl_coef": 0.1}, {
        MODEL + "lora_rank": "8", MODEL + "lora_alpha": "32", MODEL + "target_modules": "all-linear",
        MODEL + "lora.merge": "true", f"+{ACTOR}checkpoint.save_lora_only": "true",
        ACTOR + "checkpoint.save_contents": '["model", "optimizer", "extra"]',
    }),
    "an adapter to some layers": ("cuda", {"lora_rank": 8, "lora_targets": ["q_proj", "v_proj"]}, {
        MODEL + "target_modules": '["q_proj", "v_proj"]',
    }),
    "with an adapter verl loads the base": ("cpu", {"lora_rank": 8, "base_model": "first", "kl_coef": 0.1}, {
        MODEL + "path": "first", "+actor_rollout_ref.reference_model": "first",
    }),
    "an earlier trainer state": ("cpu", {"initial_trainer_state": "/s"}, {
        "+selfplay.initial_trainer_state": '"/s"',
    }),
    "an earlier trainer state of an adapter": ("cpu", {"lora_rank": 8, "initial_trainer_state": "/s"}, {
        "+selfplay.initial_trainer_state": '"/s"',
    }),
    "a KL term": ("cpu", {"kl_coef": 0.1}, {ACTOR + "use_kl_loss": "true"}),
    "imitation has none": ("cpu", {"kl_coef": 0.1, "method": "filtered-bc"}, {ACTOR + "use_kl_loss": "false"}),
    "a CPU's platform and float32": ("cpu", {}, {
        "trainer.device": "cpu", ACTOR + "fsdp_config.dtype": "float32", FSDP: "fp32",
        ACTOR + "use_torch_compile": "false",
        "+actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    }),
    "a GPU's bfloat16": ("cuda", {}, {FSDP: "bf16", ACTOR + "fsdp_config.offload_policy": "false"}),
    "tensors that stay on a GPU": ("cuda", {"offload": "none"}, {ACTOR + "fsdp_config.offload_policy": "false"}),
    "tensors that leave a GPU": ("cuda", {"offload": "cpu"}, {ACTOR + "fsdp_config.offload_policy": "true"}),
    "passes hold the longest row, 300 and 900": ("cuda", {"max_tokens_per_pass": 1000}, {
        ACTOR + "use_dynamic_bsz": "true", "+selfplay.tokens_per_pass": "1200",
    }),
    "passes of so many tokens": ("cuda", {"max_tokens_per_pass": 8192}, {"+selfplay.tokens_per_pass": "8192"}),
    "the planned steps": ("cpu", {"train_batch_size": 32, "epochs": 3}, {"trainer.total_training_steps": "6"}),
    "fewer of larger batches": ("cpu", {"train_batch_size": 64, "epochs": 3}, {"trainer.total_training_steps": "3"}),
}  # fmt: skip
"""Device and options of a training, and what verl is told."""


@pytest.mark.parametrize(("device", "options", "told"), TOLD.values(), ids=TOLD)
def test_options_become_verls(device: str, options: dict[str, Any], told: dict[str, str]) -> None:
    found = overrides(device, **options)
    assert {key: found.get(key) for key in told} == told


class TestOverrides:
    @pytest.mark.parametrize(
        ("options", "alone"),
        [
            ({}, "true"),
            ({"mini_batches": 2}, "false"),
            ({"dump_rows": True}, "false"),
            ({"overrides": ["actor_rollout_ref.actor.ppo_epochs=2"]}, "false"),
            ({"overrides": ["+algorithm.rollout_correction.rollout_rs=token_k1"]}, "false"),
            ({"overrides": ["algorithm.rollout_correction.rollout_is=null"]}, "false"),
        ],
        ids=[
            "one",
            "several updates",
            "rows are written down",
            "verl's several updates",
            "rejected tokens",
            "no weights",
        ],
    )
    def test_no_pass_goes_before_an_update_that_is_alone_in_its_batch(
        self, options: dict[str, Any], alone: str
    ) -> None:
        """verl's bypass mode brings the stored log-probs to the loss, which makes importance weights of them."""
        found = overrides("cpu", **options)
        assert found["+selfplay.one_update"] == found[CORRECTION + "bypass_mode"] == alone

    def test_a_worker_takes_all_cores_unless_it_is_told_how_many(self) -> None:
        assert worker_threads(1, {}) == len(os.sched_getaffinity(0))
        assert worker_threads(1000, {}) == 1
        assert worker_threads(1, {"OMP_NUM_THREADS": "3"}) == 3

    def test_an_adapter_is_exported_alone_with_its_base(self) -> None:
        export = export_of(config(lora_rank=8, base_model="first"), "cpu", 7)
        assert (export.base, Path(export.saved).parts[-3:]) == ("first", ("global_step_7", "actor", "adapter"))
        assert export_of(config(), "cpu", 7).base is None
        usual = overrides("cpu")
        assert '"hf_model"' in usual[ACTOR + "checkpoint.save_contents"]
        assert not {key for key in usual if "lora_rank" in key or "target" in key}

    def test_a_cpu_is_told_nothing_of_a_gpu_and_the_reverse(self) -> None:
        cpu, gpu = overrides("cpu"), overrides("cuda")
        assert not [key for key in cpu if "tokens_per" in key or "offload" in key or "dynamic" in key]
        assert {"ray_kwargs.ray_init.num_cpus", "trainer.device"} <= cpu.keys() - gpu.keys()
        variables = environment(config(), "cpu", {})
        assert (variables["VERL_PLATFORM"], variables["OMP_NUM_THREADS"]) == ("cpu", "1")
        of_gpu = environment(config(), "cuda", {})
        assert not {"VERL_PLATFORM", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & of_gpu.keys()

    @pytest.mark.parametrize(
        ("distribution", "used"),
        [("flash_attn_4-4.0.0b15", False), ("flash_attn-2.3.2", False), ("flash_attn-2.8.3", True)],
    )
    def test_flash_attention_is_asked_for_only_where_transformers_can_use_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: str, used: bool
    ) -> None:
        (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
        name, number = distribution.split("-")
        (tmp_path / f"{distribution}.dist-info").mkdir()
        (tmp_path / f"{distribution}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
        monkeypatch.syspath_prepend(tmp_path)
        found = overrides("cuda")
        attention = found["+actor_rollout_ref.model.override_config.attn_implementation"]
        assert attention == ("flash_attention_2" if used else "sdpa")

    def test_rows_are_packed_on_a_gpu_so_that_a_pass_has_no_padding(self) -> None:
        packed = [overrides(device)[MODEL + "use_remove_padding"] for device in ("cpu", "cuda")]
        assert packed == ["false", "true"]

    def test_further_hydra_overrides_come_last_and_untouched(self) -> None:
        own = ["actor_rollout_ref.actor.optim.lr=0.5", "+trainer.anything='a b'"]
        assert verl_overrides(config(overrides=own), DATA, 13, "cpu")[-2:] == own


class TestPlan:
    @given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 9))
    def test_every_group_is_in_every_epoch_once_and_steps_are_even(self, groups: int, per_step: int, seed: int) -> None:
        plan = plan_steps(groups, per_step, epochs=3, seed=seed)
        steps = len(plan) // 3
        assert plan == plan_steps(groups, per_step, epochs=3, seed=seed)
        for epoch in range(3):
            part = plan[epoch * steps : (epoch + 1) * steps]
            assert sorted(group for step in part for group in step) == list(range(groups))
        sizes = {len(step) for step in plan}
        assert max(sizes) <= per_step and max(sizes) - min(sizes) <= 1

    def test_the_order_depends_on_the_seed_and_the_epoch(self) -> None:
        plan = plan_steps(20, 20, epochs=2, seed=1)
        assert plan != plan_steps(20, 20, epochs=2, seed=2) and plan[0] != plan[1]

    @pytest.mark.parametrize(("seats", "groups"), [((0, 1), 2), ((0,), 4)])
    def test_a_batch_has_the_rows_asked_for_however_many_seats_are_trained(
        self, seats: tuple[int, ...], groups: int, tmp_path: Path
    ) -> None:
        rewards = [[episode / 8 for episode in range(8)]] * 10
        data = read_data([write(tmp_path / "a", rewards, episodes_per_state=8, seats=seats)])
        lines = verl_overrides(config(train_batch_size=32), data, len(data.groups), "cpu")
        assert f"+selfplay.groups_per_step={groups}" in lines
        assert groups * 8 * len(seats) == 32

    def test_batch_sizes_are_rounded_to_whole_groups(self) -> None:
        assert [to_groups(rows, 16) for rows in (1, 16, 23, 25, 64)] == [1, 1, 1, 2, 4]

    @given(st.integers(1, 200), st.integers(1, 3), st.integers(1, 4))
    def test_rows_are_cut_into_equal_passes_with_little_padding(self, rows: int, updates: int, processes: int) -> None:
        update, micro = split_rows(rows, updates, processes, micro_batch_size=8)
        assert 1 <= micro <= 8 and update % (micro * processes) == 0
        assert 0 <= updates * update - rows <= updates * update // micro

    def test_updates_of_a_batch_hold_rows_of_all_its_groups_each_in_the_order_of_their_lengths(self) -> None:
        order = mixed(96, processes=2, seed=[3, 1])
        assert sorted(order[:48]) == list(range(48)), "rows stay on their process"
        assert sorted(order[48:]) == list(range(48, 96))
        updates = [order[:24], order[24:48]]
        assert all({row // 8 for row in update} == set(range(6)) for update in updates), "groups of eight rows"
        assert order != mixed(96, processes=2, seed=[3, 2])
        lengths = [row % 7 for row in order]
        for block in np.array(by_length(lengths, 24)).reshape(-1, 24):
            assert np.ptp(block // 24) == 0 and np.all(np.diff(np.array(lengths)[block]) >= 0)


class TestData:
    def test_groups_lengths_and_temperature_are_read_and_files_stay_apart(self, tmp_path: Path) -> None:
        data = read_data([write(tmp_path / "a", [[0.1, 0.9], [0.5, 0.5], [1.0]]), write(tmp_path / "b", [[0.1, 0.9]])])
        assert [(group.file, group.index, group.rows, group.has_signal) for group in data.groups] == [
            (0, 0, (0, 1, 2, 3), True),
            (0, 1, (4, 5, 6, 7), False),
            (1, 0, (10, 11, 12, 13), True),
        ]
        assert (data.signal, data.num_rows, data.temperature) == (Signal(groups=4, without=2), 14, 0.7)
        assert (data.max_prompt_tokens, data.max_response_tokens) == (5, 5)

    def test_groups_without_signal_are_dropped_unless_kept(self, tmp_path: Path) -> None:
        data = read_data([write(tmp_path / "a", [[0.1, 0.9], [0.5, 0.5]])])
        assert [[group.index for group in data.to_train(kept)] for kept in (False, True)] == [[0], [0, 1]]

    def test_the_best_episodes_rows_are_imitated_each_by_itself_where_there_is_a_signal(self, tmp_path: Path) -> None:
        data = read_data([write(tmp_path / "a", [[0.1, 0.9, 0.9], [0.5, 0.5], [1.0]], episodes_per_state=3)])
        assert [group.rows for group in data.to_train(False, 1)] == [(2,), (3,)], "of two alike, the earlier one"
        assert [group.rows for group in data.to_train(False, 2)] == [(2,), (3,), (4,), (5,)]
        assert [group.rows for group in data.to_train(True, 1)] == [(2,), (3,), (6,), (7,)]

    def test_all_rows_are_imitated_where_none_is_to_be_chosen(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a", [[0.5], [1.0]], episodes_per_state=1)
        assert [group.rows for group in read_data([path], alone=True).to_train(False, 0)] == [(0,), (1,), (2,), (3,)]

    def test_a_batch_of_imitation_has_the_asked_rows_however_large_the_groups_are(self, tmp_path: Path) -> None:
        """One state of four episodes among states of one: a batch counted in groups of four would be a quarter."""
        path = write(tmp_path / "a", [[0.5] * 4, *([[1.0]] * 20)], episodes_per_state=4)
        config = TrainConfig(
            model="m", data=path, output=tmp_path, method="filtered-bc", best_of_group=0, train_batch_size=16
        )
        data = read_data([path], alone=True)
        plan = plan_for(config, data, len(data.to_train(False, config.imitated)))
        assert [len(step) for step in plan] == [16, 16, 16]

    def test_data_that_cannot_be_trained_on_are_refused_with_the_reason(self, tmp_path: Path) -> None:
        pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
        (tmp_path / "text").write_text("hello")
        files = {value: write(tmp_path / str(value), [[0.1, 0.9]], temperature=value) for value in (0.7, 1.0, 0.0)}
        for refused, words in (
            ([tmp_path / "nothing.parquet"], r"nothing.parquet: no such file"),
            ([tmp_path / "text"], "not a readable parquet file"),
            ([tmp_path / "other"], "no column 'extra_info'"),
            ([write(tmp_path / "empty", [])], "no rows"),
            (
                [write(tmp_path / "one", [[0.5]], episodes_per_state=1)],
                r"one episode per game state.*--episodes-per-state",
            ),
            ([files[0.7], files[1.0]], r"mixed sampling temperatures \[0.7, 1.0\]"),
            ([files[0.0]], "sampled greedily"),
            ([write(tmp_path / "top", [[0.1, 0.9]], top_p=0.9)], r"top_p=0.9"),
        ):
            with pytest.raises(UserError, match=words):
                read_data(refused)
        with pytest.raises(NoSignalError, match="none of 2 groups carries a signal"):
            read_data([write(tmp_path / "flat", [[0.5, 0.5], [1.0, 1.0]])]).to_train(keep_zero_signal=False)


class TestRun:
    def test_a_missing_model_or_trainer_state_is_found_before_verl_starts(self, tmp_path: Path) -> None:
        data = write(tmp_path / "a", [[0.1, 0.9]])
        with pytest.raises(UserError, match=r"config.json is missing"):
            asyncio.run(run_train(config(model=str(tmp_path / "none"), data=data, output=tmp_path / "out")))
        with pytest.raises(UserError, match="no trainer state there"):
            asyncio.run(run_train(config(data=data, output=tmp_path / "out", initial_trainer_state=tmp_path / "state")))

    def test_an_adapter_to_layers_that_the_model_lacks_or_with_another_reference_is_refused(
        self, tmp_path: Path
    ) -> None:
        data, tiny = write(tmp_path / "a", [[0.1, 0.9]]), "data/tiny_model"
        with_adapter = {"model": tiny, "data": data, "output": tmp_path / "out", "device": "cpu", "lora_rank": 4}
        for target in ("c_attn", "lm_head", "embed_tokens", "input_layernorm"):
            with pytest.raises(UserError, match=rf"no layers '{target}'; its layers are down_proj, .*q_proj"):
                asyncio.run(run_train(config(lora_targets=["q_proj", target], **with_adapter)))
        with pytest.raises(UserError, match=r"the reference policy is data/tiny_model, the model without the adapter"):
            asyncio.run(run_train(config(reference_model="a/b", kl_coef=0.1, **with_adapter)))
        assert not (tmp_path / "out").exists()

    def test_a_trainer_state_without_an_adapter_is_no_beginning_for_one(self, tmp_path: Path) -> None:
        data, state = write(tmp_path / "a", [[0.1, 0.9]]), tmp_path / "state"
        (state / "global_step_4" / "actor").mkdir(parents=True)
        (state / "latest_checkpointed_iteration.txt").write_text("4")
        with pytest.raises(UserError, match="saved without a LoRA adapter"):
            asyncio.run(run_train(config(data=data, output=tmp_path / "out", initial_trainer_state=state, lora_rank=4)))

    @pytest.mark.long
    def test_importing_the_stage_loads_neither_torch_nor_verl(self) -> None:
        heavy = "('torch', 'verl', 'ray')"
        code = f"import sys, selfplay_pipeline.train.offline; print([m for m in {heavy} if m in sys.modules])"
        assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_rows_that_are_imitated_cannot_be_written_down_with_advantages() -> None:
    options = {"train.dump_rows": True, "train.method": "filtered-bc"}
    with pytest.raises(UserError, match=r"train.dump_rows: rows that are imitated have no advantages"):
        check_training(load_config("tiny", options).train, "cpu")


@pytest.mark.parametrize("override", ["=3", "trainer.total_epochs=[1"])
def test_an_override_that_hydra_cannot_read_is_refused_by_its_key(override: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"option for train.overrides: {override!r} is no Hydra override")):
        load_config("tiny", {"train.overrides": [override]})


def test_verl_has_each_of_its_keys_that_the_documents_name() -> None:
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    named = re.findall(r"`((?:actor_rollout_ref|algorithm)\.[\w.]+=[\w.-]+)`", page)
    assert len(named) >= 10
    check_overrides(tuple(named))


@pytest.mark.parametrize(
    ("groups", "groups_per_update", "updates"),
    [(64, 8, 8), (63, 8, 8), (8, 8, 1), (3, 8, 1), (2, 0.25, 2), (64, 64, 1)],
    ids=["whole", "nearly whole", "an eighth", "less", "not less than a group", "one update"],
)
def test_a_batch_that_data_do_not_fill_has_fewer_updates(groups: int, groups_per_update: float, updates: int) -> None:
    assert updates_of(groups, groups_per_update) == updates


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"train.lora_rank": -1}, "lora_rank"),
        ({"train.overrides": ["actor_rollout_ref.model.lora_rank=8"]}, "give train.lora_rank"),
    ],
    ids=["a negative rank", "verl's own key"],
)
def test_an_adapter_that_cannot_be_is_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        load_config("tiny", given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "packed"),
    [("qwen2", True), ("gemma3_text", True), ("lfm2", False), ("qwen3_next", False), ("jamba", False)],
)
def test_rows_of_a_model_with_other_layers_than_attention_are_padded(tmp_path: Path, kind: str, packed: bool) -> None:
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    assert can_be_packed(str(tmp_path)) is packed
