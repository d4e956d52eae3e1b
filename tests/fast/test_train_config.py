"""What the options of training become in verl, and which data is refused. No torch, no verl."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import TrainConfig, TrainOptions
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
from selfplay_pipeline.train.verl_overrides import environment, plan_for, verl_overrides, worker_threads

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
    return TrainConfig(
        **{
            "model": "Qwen/Qwen2.5-7B-Instruct",
            "data": Path("train.parquet"),
            "output": Path("out"),
            "any_model": True,
        }
        | changes
    )


def overrides(device: str, num_groups: int = 13, **changes: Any) -> dict[str, str]:
    lines = verl_overrides(config(**changes), DATA, num_groups, device)  # type: ignore[arg-type]
    return dict(line.split("=", 1) for line in lines)


def write(
    path: Path,
    rewards: list[list[float]],
    episodes_per_state: int = 2,
    temperature: float = 0.7,
    seats: tuple[int, ...] = (0, 1),
    **extra: Any,
) -> Path:
    """One group per list of rewards, a row per reward and seat."""
    names = ("index", "episode", "seat", "episodes_per_state", "group_rows")
    rows = [
        {
            "data_source": "dialop_matching_selfplay",
            "reward_model": {"normalized_reward": reward},
            "extra_info": {
                "index": group,
                "episode": episode,
                "seat": seat,
                "episodes_per_state": episodes_per_state,
                "group_rows": len(episodes) * len(seats),
            },
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
            "extra_info": pa.struct({key: pa.int64() for key in names}),
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


class TestOptions:
    def test_unknown_keys_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="extra_forbidden"):
            TrainOptions.model_validate({"learning_rat": 1e-5})

    @pytest.mark.parametrize("bad", [{"epochs": 0}, {"learning_rate": 0}, {"kl_coef": -1}, {"device": "tpu"}])
    def test_impossible_values_are_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            TrainOptions.model_validate(bad)


class TestOverrides:
    def test_training_is_offline_grpo_at_the_temperature_of_the_games(self) -> None:
        found = overrides("cpu")
        assert found["algorithm.adv_estimator"] == "grpo"
        assert found["trainer.v1.trainer_mode"] == "offline"
        assert found["actor_rollout_ref.rollout.temperature"] == "0.7"
        assert found["data.max_prompt_length"] == "300"
        assert found["data.max_response_length"] == "900"
        assert found["trainer.test_freq"] == "-1"

    def test_importance_weights_are_truncated_per_token_and_not_bypassed(self) -> None:
        found = overrides("cpu", mini_batches=2)
        assert found["algorithm.rollout_correction.rollout_is"] == "token"
        assert found["algorithm.rollout_correction.rollout_is_threshold"] == "2.0"
        assert found["algorithm.rollout_correction.bypass_mode"] == "false"

    def test_no_pass_goes_before_an_update_that_is_alone_in_its_batch(self) -> None:
        """verl's bypass mode brings the stored log-probs to the loss, which makes importance weights of them."""
        found = overrides("cpu")
        assert found["+selfplay.one_update"] == found["algorithm.rollout_correction.bypass_mode"] == "true"

    @pytest.mark.parametrize(
        "options",
        [
            {"mini_batches": 2},
            {"dump_rows": True},
            {"overrides": ["actor_rollout_ref.actor.ppo_epochs=2"]},
            {"overrides": ["+algorithm.rollout_correction.rollout_rs=token_k1"]},
            {"overrides": ["algorithm.rollout_correction.rollout_is=null"]},
        ],
        ids=["several updates", "rows are written down", "verl's several updates", "rejected tokens", "no weights"],
    )
    def test_a_pass_goes_before_where_old_log_probs_are_used_for_more(self, options: dict[str, Any]) -> None:
        found = overrides("cpu", **options)
        assert found["+selfplay.one_update"] == found["algorithm.rollout_correction.bypass_mode"] == "false"

    def test_a_worker_takes_all_cores_unless_it_is_told_how_many(self) -> None:
        assert worker_threads(1, {}) == len(os.sched_getaffinity(0))
        assert worker_threads(1000, {}) == 1
        assert worker_threads(1, {"OMP_NUM_THREADS": "3"}) == 3

    def test_log_probs_of_the_games_become_the_old_ones_where_asked(self) -> None:
        """verl's bypass mode: PPO's ratio is to the stored log-probs, and no importance weights are computed."""
        assert overrides("cpu", old_log_probs="games")["algorithm.rollout_correction.bypass_mode"] == "true"
        with pytest.raises(ValidationError):
            TrainOptions.model_validate({"old_log_probs": "batch"})

    def test_options_reach_verl(self) -> None:
        found = overrides(
            "cpu", learning_rate=3e-4, kl_coef=0.02, gpus_per_node=2, loggers=["console", "tensorboard"],
            reference_model="first", mini_batches=3, gradient_checkpointing=True,
        )  # fmt: skip
        actor = "actor_rollout_ref.actor."
        assert found[actor + "optim.lr"] == "0.0003"
        assert (found[actor + "use_kl_loss"], found[actor + "kl_loss_coef"]) == ("true", "0.02")
        assert found["+actor_rollout_ref.reference_model"] == "first"
        assert found[actor + "optim.weight_decay"] == "0.0"
        assert found["actor_rollout_ref.model.enable_gradient_checkpointing"] == "true"
        assert found["trainer.logger"] == '["console", "tensorboard"]'
        assert found["trainer.n_gpus_per_node"] == "2"
        assert found["+selfplay.groups_per_update"] == str(16 / 3)  # of 16 groups of 4 rows

    def test_without_kl_no_reference_model_is_loaded(self) -> None:
        assert overrides("cpu")["actor_rollout_ref.actor.use_kl_loss"] == "false"

    def test_an_adapter_is_verls_own_and_is_saved_alone(self) -> None:
        found = overrides("cpu", lora_rank=8, lora_alpha=32, kl_coef=0.1)
        model, saves = "actor_rollout_ref.model.", "actor_rollout_ref.actor.checkpoint."
        assert (found[model + "lora_rank"], found[model + "lora_alpha"]) == ("8", "32")
        assert found[model + "target_modules"] == "all-linear"
        assert found[model + "lora.merge"] == found[f"+{saves}save_lora_only"] == "true"
        assert found[saves + "save_contents"] == '["model", "optimizer", "extra"]'
        assert '"hf_model"' in overrides("cpu")[saves + "save_contents"]
        named = overrides("cuda", lora_rank=8, lora_targets=["q_proj", "v_proj"])
        assert named[model + "target_modules"] == '["q_proj", "v_proj"]'
        assert not {key for key in overrides("cpu") if "lora_rank" in key or "target" in key}

    def test_with_an_adapter_verl_loads_the_base_and_not_the_policy_that_played(self) -> None:
        found = overrides("cpu", lora_rank=8, base_model="first", kl_coef=0.1)
        assert found["actor_rollout_ref.model.path"] == found["+actor_rollout_ref.reference_model"] == "first"
        export = export_of(config(lora_rank=8, base_model="first"), "cpu", 7)
        assert (export.base, Path(export.saved).parts[-3:]) == ("first", ("global_step_7", "actor", "adapter"))
        assert export_of(config(), "cpu", 7).base is None

    @pytest.mark.parametrize("rank", [0, 8])
    def test_a_training_begins_with_an_earlier_trainer_state(self, rank: int, tmp_path: Path) -> None:
        found = overrides("cpu", lora_rank=rank, initial_trainer_state=tmp_path)
        assert json.loads(found["+selfplay.initial_trainer_state"]) == str(tmp_path)

    def test_imitation_has_no_kl_term(self) -> None:
        options = TrainOptions(kl_coef=0.1)
        assert options.has_reference and not options.model_copy(update={"method": "filtered-bc"}).has_reference
        assert overrides("cpu", kl_coef=0.1)["actor_rollout_ref.actor.use_kl_loss"] == "true"
        assert overrides("cpu", kl_coef=0.1, method="filtered-bc")["actor_rollout_ref.actor.use_kl_loss"] == "false"

    def test_a_cpu_gets_its_platform_and_float32(self) -> None:
        found, variables = overrides("cpu"), environment(config(), "cpu", {})
        assert found["trainer.device"] == "cpu"
        assert found["actor_rollout_ref.actor.fsdp_config.dtype"] == "float32"
        assert found["+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"] == "fp32"
        assert found["+actor_rollout_ref.model.override_config.attn_implementation"] == "sdpa"
        assert found["actor_rollout_ref.actor.use_torch_compile"] == "false"
        assert variables["VERL_PLATFORM"] == "cpu"
        assert variables["OMP_NUM_THREADS"] == "1"

    def test_a_gpu_gets_bfloat16_and_nothing_of_the_cpu(self) -> None:
        found, variables = overrides("cuda"), environment(config(), "cuda", {})
        assert found["+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"] == "bf16"
        cpu_only = overrides("cpu").keys() - found.keys()
        assert "ray_kwargs.ray_init.num_cpus" in cpu_only
        assert "trainer.device" in cpu_only
        assert not {"VERL_PLATFORM", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"} & variables.keys()

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
        assert found["actor_rollout_ref.model.use_remove_padding"] == str(used).lower()

    def test_passes_of_so_many_tokens_hold_the_longest_row(self) -> None:
        found = overrides("cuda", max_tokens_per_pass=1000)
        assert found["actor_rollout_ref.actor.use_dynamic_bsz"] == "true"
        assert found["+selfplay.tokens_per_pass"] == "1200", "a prompt of 300 and a response of 900"
        assert overrides("cuda", max_tokens_per_pass=8192)["+selfplay.tokens_per_pass"] == "8192"

    def test_tensors_leave_a_gpu_through_fsdps_own_offloading(self) -> None:
        key = "actor_rollout_ref.actor.fsdp_config.offload_policy"
        assert [overrides("cuda", offload=where)[key] for where in ("auto", "none", "cpu")] == [
            "false",
            "false",
            "true",
        ]

    def test_a_cpu_is_told_nothing_of_tokens_and_offloading(self) -> None:
        assert not [key for key in overrides("cpu") if "tokens_per" in key or "offload" in key or "dynamic" in key]

    def test_further_hydra_overrides_come_last_and_untouched(self) -> None:
        own = ["actor_rollout_ref.actor.optim.lr=0.5", "+trainer.anything='a b'"]
        assert verl_overrides(config(overrides=own), DATA, 13, "cpu")[-2:] == own

    def test_an_override_is_hydra_grammar(self) -> None:
        found = overrides("cpu", model="/models/a b/c=d")
        assert found["actor_rollout_ref.model.path"] == '"/models/a b/c=d"'
        assert found["+selfplay.dump_rows"] == "null"

    def test_the_steps_that_verl_is_told_are_the_planned_ones(self) -> None:
        assert overrides("cpu", train_batch_size=32, epochs=3)["trainer.total_training_steps"] == "6"
        assert overrides("cpu", train_batch_size=64, epochs=3)["trainer.total_training_steps"] == "3"


class TestPlan:
    @pytest.mark.parametrize(("groups", "per_step"), [(13, 8), (13, 13), (1, 1), (100, 7), (16, 8)])
    def test_every_group_is_in_every_epoch_once_and_steps_are_even(self, groups: int, per_step: int) -> None:
        plan = plan_steps(groups, per_step, epochs=3, seed=5)
        steps = len(plan) // 3
        assert len(plan) == 3 * steps
        for epoch in range(3):
            part = plan[epoch * steps : (epoch + 1) * steps]
            assert sorted(group for step in part for group in step) == list(range(groups))
        sizes = {len(step) for step in plan}
        assert max(sizes) <= per_step
        assert max(sizes) - min(sizes) <= 1

    def test_the_order_depends_on_the_seed_and_the_epoch_alone(self) -> None:
        plan = plan_steps(20, 20, epochs=2, seed=1)
        assert plan == plan_steps(20, 20, epochs=2, seed=1)
        assert plan != plan_steps(20, 20, epochs=2, seed=2)
        assert plan[0] != plan[1]

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

    @pytest.mark.parametrize("rows", [1, 26, 28, 52, 64, 97])
    @pytest.mark.parametrize("updates", [1, 2, 3])
    @pytest.mark.parametrize("processes", [1, 4])
    def test_rows_are_cut_into_equal_passes_with_little_padding(self, rows: int, updates: int, processes: int) -> None:
        update, micro = split_rows(rows, updates, processes, micro_batch_size=8)
        assert 1 <= micro <= 8
        assert update % (micro * processes) == 0
        passes = update // (micro * processes)
        assert 0 <= updates * update - rows <= updates * processes * passes

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
    def test_groups_lengths_and_temperature_are_read(self, tmp_path: Path) -> None:
        data = read_data([write(tmp_path / "a", [[0.1, 0.9], [0.5, 0.5], [1.0]])])
        assert [(group.index, group.rows, group.has_signal) for group in data.groups] == [
            (0, (0, 1, 2, 3), True),
            (1, (4, 5, 6, 7), False),
        ]
        assert (data.signal, data.num_rows, data.temperature) == (Signal(groups=3, without=2), 10, 0.7)
        assert (data.max_prompt_tokens, data.max_response_tokens) == (5, 5)

    def test_groups_without_signal_are_dropped_unless_kept(self, tmp_path: Path) -> None:
        data = read_data([write(tmp_path / "a", [[0.1, 0.9], [0.5, 0.5]])])
        assert [group.index for group in data.to_train(keep_zero_signal=False)] == [0]
        assert [group.index for group in data.to_train(keep_zero_signal=True)] == [0, 1]

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

    def test_groups_of_several_files_stay_apart(self, tmp_path: Path) -> None:
        files = [write(tmp_path / name, [[0.1, 0.9]]) for name in ("a", "b")]
        assert Counter((group.file, group.index) for group in read_data(files).groups) == {(0, 0): 1, (1, 0): 1}

    def test_no_signal_at_all_is_an_error_that_explains(self, tmp_path: Path) -> None:
        with pytest.raises(NoSignalError, match="none of 2 groups carries a signal"):
            read_data([write(tmp_path / "a", [[0.5, 0.5], [1.0, 1.0]])]).to_train(keep_zero_signal=False)

    def test_one_episode_per_state_is_refused_with_the_reason(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"one episode per game state.*--episodes-per-state"):
            read_data([write(tmp_path / "a", [[0.5], [1.0]], episodes_per_state=1)])

    def test_mixed_or_zero_temperature_is_refused(self, tmp_path: Path) -> None:
        files = [write(tmp_path / str(value), [[0.1, 0.9]], temperature=value) for value in (0.7, 1.0, 0.0)]
        with pytest.raises(UserError, match=r"mixed sampling temperatures \[0.7, 1.0\]"):
            read_data(files[:2])
        with pytest.raises(UserError, match="sampled greedily"):
            read_data(files[2:])

    def test_sampling_that_the_log_probs_ignore_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"top_p=0.9"):
            read_data([write(tmp_path / "a", [[0.1, 0.9]], top_p=0.9)])

    def test_unusable_files_are_named(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"nothing.parquet: no such file"):
            read_data([tmp_path / "nothing.parquet"])
        (tmp_path / "text").write_text("hello")
        with pytest.raises(UserError, match="not a readable parquet file"):
            read_data([tmp_path / "text"])
        pq.write_table(pa.table({"a": [1]}), tmp_path / "other")
        with pytest.raises(UserError, match="no column 'extra_info'"):
            read_data([tmp_path / "other"])
        with pytest.raises(UserError, match="no rows"):
            read_data([write(tmp_path / "empty", [])])


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
        check_training(load_config("tiny", options).train)


@pytest.mark.parametrize("override", ["=3", "trainer.total_epochs=[1"])
def test_an_override_that_hydra_cannot_read_is_refused_by_its_key(override: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"option for train.overrides: {override!r} is no Hydra override")):
        load_config("tiny", {"train.overrides": [override]})


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
