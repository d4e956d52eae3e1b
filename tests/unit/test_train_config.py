"""What the options of training become in verl, on one machine and on a cluster, and which are refused. No torch."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from pydantic import ValidationError
from test_train_groups import write
from transformers import AutoConfig

import selfplay_pipeline
from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import WRITES_ROWS, TrainConfig, TrainOptions
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.loopback import loopback_environment
from selfplay_pipeline.metrics.signal import Signal
from selfplay_pipeline.train.cluster import facts, no_room
from selfplay_pipeline.train.groups import TrainData, read_data
from selfplay_pipeline.train.offline import check_training, check_verls_keys, export_of, plan_train, run_train
from selfplay_pipeline.train.verl_overrides import (
    can_be_packed,
    check_not_set_by,
    environment,
    plan_for,
    to_hydra,
    trains_sampler,
    verl_overrides,
    worker_threads,
)

DATA = TrainData(
    groups=[], signal=Signal(0, 0), temperature=0.7, episodes_per_state=2, num_rows=52, max_prompt_tokens=300,
    max_response_tokens=900,
)  # fmt: skip


def config(**changes: Any) -> TrainConfig:
    usual = {"model": "Qwen/Qwen2.5-7B-Instruct", "data": Path("train.parquet"), "output": Path("out")}
    return TrainConfig(**usual | {"any_model": True} | changes)


def overrides(device: Any, num_groups: int = 13, **changes: Any) -> dict[str, str]:
    return dict(line.split("=", 1) for line in verl_overrides(config(**changes), DATA, num_groups, device))


ACTOR, MODEL, CORRECTION = "actor_rollout_ref.actor.", "actor_rollout_ref.model.", "algorithm.rollout_correction."
FSDP = "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype"
TOLD = {
    "offline GRPO at the temperature of the games": ("cpu", {}, {
        "algorithm.adv_estimator": "grpo", "trainer.v1.trainer_mode": "offline", "trainer.test_freq": "-1",
        "actor_rollout_ref.rollout.temperature": "0.7", "data.max_prompt_length": "300",
        "data.max_response_length": "900", "+selfplay.dump_rows": "false", ACTOR + "use_kl_loss": "false",
    }),
    "importance weights are truncated per token": ("cpu", {"mini_batches": 2}, {
        CORRECTION + "rollout_is": "token", CORRECTION + "rollout_is_threshold": "2.0",
        CORRECTION + "bypass_mode": "false",
    }),
    # verl's bypass mode: PPO's ratio is to the stored log-probs, and no importance weights are computed
    "log-probs of the games are the old ones": ("cpu", {"old_log_probs": "games"}, {
        CORRECTION + "bypass_mode": "true",
    }),
    "several nodes of a cluster": ("cuda", {"nodes": 2, "gpus_per_node": 4, "ray_address": "10.0.0.1:6379"}, {
        "trainer.nnodes": "2", "trainer.n_gpus_per_node": "4", "+ray_kwargs.ray_init.address": '"10.0.0.1:6379"',
        "data.train_batch_size": "16",  # a multiple of the processes
    }),
    "options": ("cpu", {
        "learning_rate": 3e-4, "kl_coef": 0.02, "gpus_per_node": 2, "loggers": ["console", "tensorboard"],
        "reference_model": "first", "mini_batches": 3, "gradient_checkpointing": True, "model": "/models/a b/c=d",
    }, {
        ACTOR + "optim.lr": "0.0003", ACTOR + "use_kl_loss": "true", ACTOR + "kl_loss_coef": "0.02",
        "+actor_rollout_ref.reference_model": "first", ACTOR + "optim.weight_decay": "0.0",
        MODEL + "enable_gradient_checkpointing": "true", "trainer.logger": '[console,tensorboard]',
        "trainer.n_gpus_per_node": "2", MODEL + "path": '"/models/a b/c=d"',
        "+selfplay.groups_per_update": str(16 / 3),  # of 16 groups of 4 rows
    }),
    "an adapter is verl's own and is saved alone": ("cpu", {"lora_rank": 8, "kl_coef": 0.1}, {
        MODEL + "lora_rank": "8", MODEL + "lora_alpha": "8", MODEL + "target_modules": "all-linear",
        MODEL + "lora.merge": "true", f"+{ACTOR}checkpoint.save_lora_only": "true",
        ACTOR + "checkpoint.save_contents": '[model,optimizer,extra]',
    }),
    "an adapter to some layers": ("cuda", {"lora_rank": 8, "overrides": [MODEL + "target_modules=[q_proj,v_proj]"]}, {
        MODEL + "target_modules": "[q_proj,v_proj]",
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
def test_options_become_verls(device, options, told):
    found = overrides(device, **options)
    assert {key: found.get(key) for key in told} == told


@pytest.mark.parametrize(
    ("options", "alone"),
    [
        ({}, "true"),
        ({"mini_batches": 2}, "false"),
        ({"overrides": [WRITES_ROWS]}, "false"),
        ({"overrides": ["actor_rollout_ref.actor.ppo_epochs=2"]}, "false"),
        ({"overrides": ["+algorithm.rollout_correction.rollout_rs=token_k1"]}, "false"),
    ],
    ids=["one", "several updates", "rows are written down", "verl's several updates", "rejected tokens"],
)
def test_no_pass_goes_before_an_update_that_is_alone_in_its_batch(options, alone):
    """verl's bypass mode brings the stored log-probs to the loss, which makes importance weights of them."""
    found = overrides("cpu", **options)
    assert found["+selfplay.one_update"] == found[CORRECTION + "bypass_mode"] == alone


def test_imitation_has_no_log_probs_to_pass_by():
    assert overrides("cpu", method="filtered-bc")["+selfplay.one_update"] == "false"


def test_a_worker_takes_its_share_of_all_cores_unless_it_is_told_how_many():
    cores = len(os.sched_getaffinity(0))
    assert [worker_threads(workers, {}) for workers in (1, cores, 1000)] == [cores, 1, 1]
    assert worker_threads(1, {"OMP_NUM_THREADS": "3"}, spare=1) == 3
    assert worker_threads(1, {"OMP_NUM_THREADS": "4,2"}) == 4  # OpenMP takes a number for each level
    assert [worker_threads(cores, {"OMP_NUM_THREADS": no}) for no in ("", " ", "0", "x")] == [1] * 4
    assert [worker_threads(workers, {}, spare=1) for workers in (1, 1000)] == [max(1, cores - 1), 1]


def test_an_adapter_is_exported_alone_with_its_base():
    export = export_of(config(lora_rank=8, base_model="first"), "cpu", 7)
    assert (export.base, Path(export.saved).parts[-3:]) == ("first", ("global_step_7", "actor", "adapter"))
    assert export_of(config(), "cpu", 7).base is None
    usual = overrides("cpu")
    assert "hf_model" in usual[ACTOR + "checkpoint.save_contents"]
    assert not {key for key in usual if "lora_rank" in key or "target" in key}


def test_a_cpu_is_told_nothing_of_a_gpu_and_the_reverse():
    cpu, gpu = overrides("cpu"), overrides("cuda")
    assert not [key for key in cpu if "tokens_per" in key or "offload" in key or "dynamic" in key]
    assert {"ray_kwargs.ray_init.num_cpus", "trainer.device"} <= cpu.keys() - gpu.keys()
    assert [found[MODEL + "use_remove_padding"] for found in (cpu, gpu)] == ["false", "true"], "packed without padding"
    variables = environment(config(gpus_per_node=2), "cpu", {})
    expected = {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "-1,-1"}
    assert expected.items() <= variables.items()
    assert not expected.keys() & environment(config(), "cuda", {}).keys()


@pytest.mark.parametrize(
    ("distribution", "used"),
    [("flash_attn_4-4.0.0b15", False), ("flash_attn-2.3.2", False), ("flash_attn-2.3.3", True)],
)
def test_flash_attention_is_asked_for_only_where_transformers_can_use_it(tmp_path, monkeypatch, distribution, used):
    (tmp_path / "flash_attn" / "cute").mkdir(parents=True)
    name, number = distribution.split("-")
    (tmp_path / f"{distribution}.dist-info").mkdir()
    (tmp_path / f"{distribution}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {number}\n")
    monkeypatch.syspath_prepend(tmp_path)
    attention = overrides("cuda")["+actor_rollout_ref.model.override_config.attn_implementation"]
    assert attention == ("flash_attention_2" if used else "sdpa")


@pytest.mark.parametrize(
    ("kind", "packed"),
    [("qwen2", True), ("gemma3_text", True), ("lfm2", False), ("qwen3_next", False), ("jamba", False)],
)
def test_rows_of_a_model_with_other_layers_than_attention_are_padded(tmp_path, kind, packed):
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    assert can_be_packed(str(tmp_path)) is packed


def test_further_hydra_overrides_come_last_and_untouched():
    own = ["actor_rollout_ref.actor.optim.weight_decay=0.5", "+trainer.anything='a b'"]
    assert verl_overrides(config(overrides=own), DATA, 13, "cpu")[-2:] == own


@pytest.mark.long
def test_verl_takes_each_of_its_keys_that_the_documents_name_after_ours() -> None:
    docs = Path(__file__).parents[2] / "docs"
    pages = "".join((docs / f"{name}.md").read_text() for name in ("configuration", "gpus"))
    named = re.findall(r"[`'](~[\w.]+|(?:actor_rollout_ref|algorithm)\.[\w.]+=[\w.-]+)[`']", pages)
    assert len(named) >= 10 and any(key.startswith("~") for key in named)
    check_verls_keys(config(overrides=named))


@pytest.mark.parametrize(("seats", "groups"), [((0, 1), 2), ((0,), 4)])
def test_a_batch_has_the_rows_asked_for_however_many_seats_are_trained(seats, groups, tmp_path):
    rewards = [[episode / 8 for episode in range(8)]] * 10
    data = read_data([write(tmp_path / "a", rewards, episodes_per_state=8, seats=seats)])
    lines = verl_overrides(config(train_batch_size=32), data, len(data.groups), "cpu")
    assert f"+selfplay.groups_per_step={groups}" in lines
    assert groups * 8 * len(seats) == 32


def test_a_batch_of_imitation_has_the_asked_rows_however_large_the_groups_are(tmp_path):
    """One state of four episodes among states of one: a batch counted in groups of four would be a quarter."""
    path = write(tmp_path / "a", [[0.5] * 4, *([[1.0]] * 20)], episodes_per_state=4)
    settings = config(data=path, method="filtered-bc", best_of_group=0, train_batch_size=16)
    data = read_data([path], alone=True)
    plan = plan_for(settings, data, len(data.to_train(False, settings.imitated)))
    assert [len(step) for step in plan] == [16, 16, 16]


WORDS = [
    "a b",
    "josé",
    "/home/josé/日本",
    "${x}",
    "/a/${x}/y",
    "a\\${x}",
    "a\\\\${x}",
    'a"b',
    "a\\b",
    "a\\",
    'a\\"',
    "true",
    "8",
    "[a]",
    "é",
    "",
]


@pytest.mark.parametrize("value", [*WORDS, WORDS, [[word] for word in WORDS], None, True, 3, 0.5])
def test_hydra_reads_a_value_as_it_was(value):
    (line,) = to_hydra({"key": value})
    read = OverridesParser.create().parse_override(line).value()
    assert OmegaConf.to_container(OmegaConf.create({"key": read}), resolve=True) == {"key": value}


def test_a_training_whose_adapter_is_gone_does_not_begin_with_the_first_model_again():
    adapter = {"lora_rank": 8, "base_model": "data/tiny_model", "model": "data/tiny_honest_model"}
    with pytest.raises(UserError, match=r"the adapter that made data/tiny_honest_model is gone.*trainer_state"):
        plan_train(config(**adapter))
    with pytest.raises(UserError, match=r"train\.parquet"):  # the next thing that is missing here
        plan_train(config(**adapter | {"base_model": "data/tiny_honest_model"}))


# --- several machines


CLUSTER = {"nodes": 2, "gpus_per_node": 4, "ray_address": "10.0.0.1:6379"}
OURS = "ray_kwargs.ray_init."


def told(device: Any, **changes: Any) -> dict[str, Any]:
    """What Hydra makes of the overrides."""
    parsed = OverridesParser.create().parse_overrides(verl_overrides(config(**changes), DATA, 13, device))
    return {override.key_or_group: override.value() for override in parsed}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_cluster_that_runs_keeps_its_resources_folders_token_and_addresses(device):
    found, variables = told(device, **CLUSTER), environment(config(**CLUSTER), device, {})
    alone, variables_alone = told(device, gpus_per_node=4), environment(config(gpus_per_node=4), device, {})
    ray = {key.removeprefix(OURS) for key in found if key.startswith(OURS)}
    assert {key for key in ray if not key.startswith("runtime_env.")} == {"address"}
    assert loopback_environment().items() <= variables_alone.items()
    assert not loopback_environment().keys() & variables.keys()
    assert not {name for name in variables if name.startswith("RAY_")} - {"RAY_DEDUP_LOGS"}
    assert alone[OURS + "address"] == "local" and OURS + "include_dashboard" in alone


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_workers_of_a_cluster_get_as_text_what_they_inherit_elsewhere(device):
    found, inherited = told(device, **CLUSTER), environment(config(), device, {})
    brought = {key.split("env_vars.")[1]: value for key, value in found.items() if "env_vars." in key}
    assert brought["VERL_USE_EXTERNAL_MODULES"] == "selfplay_pipeline.train.verl.load_offline"
    assert ("VERL_PLATFORM" in brought) == (device == "cpu")
    assert brought.items() <= inherited.items()
    assert not any("env_vars." in key for key in told(device))


def test_where_a_training_runs_may_change_and_how_many_processes_it_has_may_not():
    decides = deciding(config(**CLUSTER), "train")
    assert (decides["train.nodes"], decides["train.gpus_per_node"]) == (2, 4)
    assert "train.ray_address" not in decides


@pytest.mark.parametrize(
    ("free", "nodes", "gpus", "room"),
    [
        ({"a": (8, 64), "b": (8, 64)}, 2, 8, True),
        ({"a": (8, 64), "b": (7, 64)}, 2, 8, False),
        ({"a": (8, 64), "b": (8, 26)}, 2, 8, False),
        ({"a": (8, 64), "b": (8, 27)}, 2, 8, True),
        ({"a": (8, 64)}, 2, 4, True),
        ({"a": (4, 64), "b": (4, 64)}, 1, 8, False),
        ({}, 1, 1, False),
    ],
)
def test_room_is_counted_by_whole_nodes_of_gpus_and_logical_cpus(free, nodes, gpus, room):
    assert (no_room(free, nodes, gpus) is None) == room


def test_a_file_is_told_by_its_size_and_its_end_and_an_absent_one_by_the_reason(tmp_path):
    (tmp_path / "one").write_bytes(b"a" * 100_000)
    (tmp_path / "other").write_bytes(b"b" * 99_999 + b"a")
    files = {name: str(tmp_path / name) for name in ("one", "other", "none")}
    found = facts(files, "none")
    assert found["one"] != found["other"]
    assert found["none"] == "No such file or directory"
    (tmp_path / "other").write_bytes(b"a" * 100_000)
    assert facts(files, "none")["other"] == found["one"]
    assert found["the package selfplay_pipeline"] == selfplay_pipeline.__file__


# --- what cannot be


@pytest.mark.parametrize("address", ["ray://10.0.0.1:10001", "10.0.0.1", "Local", "", "http://a:1"])
def test_what_is_no_address_of_a_cluster_is_refused(address):
    with pytest.raises(ValidationError, match="expected local, auto or HOST:PORT"):
        TrainOptions(ray_address=address)


def test_only_with_grpo_an_episode_counts_once():
    check_not_set_by({}, ["algorithm.adv_estimator=grpo"])
    with pytest.raises(UserError, match=r"algorithm.adv_estimator=rloo': only with grpo an episode counts once"):
        check_verls_keys(config(overrides=["algorithm.adv_estimator=rloo"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train.nodes": 2}, r"train.nodes 2: this machine is one node; start a Ray cluster"),
        ({"train.overrides": [WRITES_ROWS], "train.method": "filtered-bc"}, r"train.overrides: .* have no advantages"),
        ({"train.overrides": ["trainer.total_epochs=[1"]}, r"train.overrides: .* is not a Hydra override"),
        ({"train.lora_rank": -1}, "lora_rank"),
        ({"train.overrides": ["actor_rollout_ref.model.lora_rank=8"]}, "give train.lora_rank"),
        ({"train.best_of_group": 3}, "train.best_of_group: GRPO compares all episodes of a group; leave it out, or"),
    ],
)
def test_options_that_cannot_be_are_refused(options, said):
    with pytest.raises(UserError, match=said):
        check_training(load_config("tiny", options).train, "cpu")


@pytest.mark.parametrize(
    "key",
    [
        "data.seed", "+data.shuffle", "actor_rollout_ref.actor.ppo_mini_batch_size", "actor_rollout_ref.actor.optim.lr",
        "actor_rollout_ref.rollout.temperature", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
        "actor_rollout_ref.model.path", "data.train_files", "trainer.default_local_dir", "trainer.save_freq",
        "trainer.total_epochs", "trainer.total_training_steps", "trainer.test_freq", "trainer.val_before_train",
        "trainer.val_only", "trainer.nnodes", "trainer.n_gpus_per_node", "actor_rollout_ref.rollout.n",
        "actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef", "algorithm.use_kl_in_reward",
    ],
)  # fmt: skip
def test_keys_of_verl_that_the_trainer_sets_itself_are_refused(key):
    with pytest.raises(UserError, match=r"train.overrides: .* the trainer sets this key itself; use .* in its place"):
        check_verls_keys(config(overrides=[f"{key}=8"]))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "./none"}, "config.json is missing|no Hugging Face model there"),
        ({"initial_trainer_state": Path("nothing")}, "no trainer state there"),
        ({"initial_trainer_state": Path("state"), "lora_rank": 4}, "saved without a LoRA adapter"),
        ({"initial_trainer_state": Path("state")}, "saved with another number of training processes"),
        ({"lora_rank": 4, "reference_model": "a/b", "kl_coef": 0.1}, r"the reference policy is .*/tiny_model, the"),
    ],
    ids=str,
)
def test_what_a_training_lacks_is_found_before_verl_starts(tmp_path, monkeypatch, options, said):
    tiny = str(Path("data/tiny_model").resolve())
    monkeypatch.chdir(tmp_path)
    data = write(tmp_path / "a", [[0.1, 0.9]])
    (tmp_path / "state" / "global_step_4" / "actor").mkdir(parents=True)
    (tmp_path / "state" / "latest_checkpointed_iteration.txt").write_text("4")
    with pytest.raises(UserError, match=said):
        asyncio.run(run_train(config(**{"model": tiny, "data": data, "device": "cpu"} | options)))
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.parametrize("module", ["train.offline", "train.online_states", "generate.run"])
def test_planning_a_training_and_playing_load_neither_torch_nor_verl(module):
    code = f"import sys, selfplay_pipeline.{module}; print([m for m in ('torch', 'verl', 'ray') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


@pytest.mark.parametrize("text", ["8", "true", "1e5", "null", "a b", "o'b", "[a]", "", "$x", "010", "data-x", "a.b"])
def test_a_text_stays_a_text_in_verls_configuration(text):
    (override,) = to_hydra({"+selfplay.environment.WANDB_RUN_GROUP": text})
    assert OverridesParser.create().parse_override(override).value() == text


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({}, True), ({"sampled_by": "model"}, True), ({"lora_rank": 8, "base_model": "base"}, True),
        ({"sampled_by": "iter_1/checkpoint"}, False), ({"any_model": True}, False),
        ({"any_model": True, "imitated": 1}, False),
    ],
)  # fmt: skip
def test_log_probs_are_compared_where_the_trained_model_sampled_the_rows(changes, compared):
    """Episodes that are played ahead are those of an earlier checkpoint, whose log-probs differ rightly."""
    assert trains_sampler(config(model="model", any_model=False).model_copy(update=changes)) is compared
    assert overrides("cpu", any_model=changes.get("any_model", False))["+selfplay.max_log_prob_gap"] == (
        "null" if "any_model" in changes else "0.5"
    )
