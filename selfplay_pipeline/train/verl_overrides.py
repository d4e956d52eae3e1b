"""Translates our options to verl's: Hydra overrides and environment variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

from selfplay_pipeline.config.training import PolicyTraining, TrainConfig, TrainOptions, key_of
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.gpus import Device
from selfplay_pipeline.core.hub import config_of, only_attention
from selfplay_pipeline.core.loopback import loopback_environment
from selfplay_pipeline.core.model_sizes import experts_of, sizes_of
from selfplay_pipeline.train.groups import TrainData, plan_steps, to_groups
from selfplay_pipeline.train.loggers import PROJECT, logging_environment, name_of_run

PARTS = "selfplay_pipeline.train.verl"
EXTENSION = f"{PARTS}.load_offline"
MAX_ROUNDING = 0.5
"""Largest mean |trainer - engine| in nats of the stored log-probs before the first update.

Measured with the engine in float32 on a CPU: at most 3e-6 with a trainer in float32, and in bfloat16 0.002 for the tiny
model, 0.04 for SmolLM2-135M, 0.11 for a random model with large weights. Other weights give 4 to 6. The table is in
docs/data.md.
"""
IMPORTANCE_THRESHOLD = 2.0
"""Upper bound of the importance weights (trainer over engine, per token); larger weights are truncated."""
OBJECT_STORE_BYTES = 300_000_000
"""Size of Ray's shared memory; small, because trajectories pass through TransferQueue's own sockets."""


def resolve_dtype(config: TrainOptions, device: Device) -> Literal["float32", "bfloat16"]:
    """Returns the dtype of the forward pass and of the checkpoint."""
    if config.dtype != "auto":
        return config.dtype
    return "bfloat16" if device == "cuda" else "float32"


def groups_per_step(config: TrainConfig, data: TrainData, num_groups: int) -> int:
    """Returns the number of groups in a step: `train_batch_size` in whole groups, at most all groups."""
    return min(whole_batch(config, data), num_groups)


def whole_batch(config: TrainConfig, data: TrainData) -> int:
    """Returns `train_batch_size`, which counts seats' parts of episodes, in whole groups.

    Each imitated row is a group of its own.
    """
    if config.imitated is not None:
        return round(config.train_batch_size * data.rows_per_seat)
    return to_groups(config.train_batch_size, data.episodes_per_state * data.seats_per_episode)


def plan_for(config: TrainConfig, data: TrainData, num_groups: int) -> list[list[int]]:
    """Returns the positions of the groups of each step, in the order in which the trainer will take them."""
    return plan_steps(num_groups, groups_per_step(config, data, num_groups), config.epochs, config.seed)


def verl_overrides(config: TrainConfig, data: TrainData, num_groups: int, device: Device) -> list[str]:
    """Returns the Hydra overrides for verl's `ppo_trainer` configuration, the user's own last."""
    settings = process_settings(config, device) | training_settings(config, data, num_groups)
    return [*to_hydra(settings), *for_workers(config, worker_environment(device)), *config.overrides]


def preparing_overrides(config: TrainConfig, device: Device) -> list[str]:
    """Returns the Hydra overrides for a process that starts before its data exist."""
    settings = process_settings(config, device) | _model_settings(config)
    nominal = {"data.train_batch_size": config.workers, "actor_rollout_ref.actor.ppo_mini_batch_size": config.workers}
    settings |= nominal | {"+selfplay.metrics_path": None}
    return [*to_hydra(settings), *for_workers(config, worker_environment(device)), *config.overrides]


SET_BY_TRAINERS = {
    "actor_rollout_ref.model.path": "model",
    "trainer.default_local_dir": "--output",
    "trainer.logger": "train.loggers",
    "trainer.n_gpus_per_node": "train.gpus_per_node",
    "trainer.nnodes": "train.nodes",
    "trainer.resume_mode": "--output",
    "trainer.save_freq": "train.save_every",
}
"""Keys of verl that offline and online training set themselves, with what to use in their place."""
ESTIMATOR = "algorithm.adv_estimator"


def check_not_set_by(table: Mapping[str, str], overrides: Sequence[str]) -> None:
    """Raises UserError if an override sets a key that the trainer decides, or chooses another estimator than GRPO.

    verl compares the rows of an episode as one only with GRPO (`compute_advantage_for_multi_trajectories`); with
    another estimator an episode would count once for each seat that spoke.
    """
    for override in overrides:
        key = key_of(override)
        if instead := table.get(key):
            raise UserError(
                f"train.overrides: {override!r}: the trainer sets this key itself; use {instead} in its place"
            )
        if key == ESTIMATOR and override.partition("=")[2].strip("'\"") != "grpo":
            raise UserError(
                f"train.overrides: {override!r}: only with grpo an episode counts once, however many seats spoke; "
                "algorithm.norm_adv_by_std_in_grpo may be changed"
            )


def check_overrides(config: TrainOptions, overrides: Sequence[str], file: Path | None = None) -> None:
    """Raises UserError unless verl's configuration takes the user's overrides after ours; does not import verl.

    Args:
        config: The options of the training.
        overrides: All overrides of the training, the user's own last.
        file: File with settings on top of verl's own configuration; None for verl's `ppo_trainer`.
    """
    if config.overrides:
        _check_composes(tuple(overrides), file)


@cache
def _check_composes(overrides: tuple[str, ...], file: Path | None) -> None:
    verl = find_spec("verl")
    if verl is None or verl.origin is None:
        return  # without verl, nothing is trained here
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    base = Path(verl.origin).parent / "trainer" / "config"
    # The file's own search path, pkg://verl…, would import verl and torch.
    search = () if file is None else (f"hydra.searchpath=[file://{base}]",)
    try:
        with initialize_config_dir(str(base if file is None else file.parent), version_base=None):
            compose("ppo_trainer" if file is None else file.stem, [*search, *overrides])
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(
            f"train.overrides (KEY=VALUE after --): {first_line(error)} verl's configuration (ppo_trainer) decides "
            "which keys exist; correct the key, or write +KEY=VALUE to add one"
        ) from None


def process_settings(config: TrainConfig, device: Device) -> dict[str, Any]:
    """Returns the settings of a training that do not depend on its data.

    `rollout.n` is 1, because an item of the dataset is already a group with all its episodes; so the sizes of
    mini-batches are numbers of rows.
    """
    return policy_settings(config, device) | {
        **_passes(config),
        "algorithm.adv_estimator": "grpo",
        "algorithm.use_kl_in_reward": False,
        # verl's bypass mode takes the stored log-probs for PPO's old ones, and leaves the importance weights out.
        "algorithm.rollout_correction.bypass_mode": config.old_log_probs == "games" or one_update(config),
        "+selfplay.one_update": one_update(config),
        "+selfplay.dump_rows": False,
        "+selfplay.imitates": config.imitated is not None,
        "+actor_rollout_ref.imitates": config.imitated is not None,
        "+actor_rollout_ref.threads": worker_threads(config.gpus_per_node, spare=int(config.plays_meanwhile)),
        # `plan_steps` orders the groups, equally after each interruption.
        "data.shuffle": False,
        "data.dataloader_num_workers": 0,
        "data.custom_cls.path": f"pkg://{PARTS}.dataset",
        "data.custom_cls.name": "GroupDataset",
        "+data.selfplay.keep_zero_signal": config.keep_zero_signal,
        "+data.selfplay.imitated": config.imitated,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": config.micro_batch_size,
        # Without a KL term nothing reads it; then a change need not rebuild the workers.
        "+actor_rollout_ref.reference_model": everywhere(config.reference_model or config.base)
        if config.has_reference
        else None,
        "+selfplay.shares_gpu": config.shares_gpu,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": config.micro_batch_size,
        "actor_rollout_ref.rollout.name": "offline",
        "actor_rollout_ref.rollout.nnodes": 1,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.n": 1,
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": config.micro_batch_size,
        "+actor_rollout_ref.rollout.agent.agent_loop_manager_class": f"{PARTS}.replay.ReplayManager",
        "critic.enable": False,
        # Rewards are stored with the rows.
        "reward.num_workers": 0,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.v1.trainer_mode": "offline",
        # Stored games cannot validate a new policy; `selfplay evaluate` plays new ones.
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.resume_mode": "auto",
        # verl saves before it logs: after a kill between the two, training continues at the save before (`saves.py`).
        "trainer.max_actor_ckpt_to_keep": 2,
    }


def _passes(config: TrainConfig) -> dict[str, Any]:
    """Returns the settings that limit a pass by tokens, if configured; else the trainer sets the rows of a pass."""
    if config.max_tokens_per_pass is None:
        return {}
    return {
        "actor_rollout_ref.actor.use_dynamic_bsz": True,  # verl's other roles follow it
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": config.max_tokens_per_pass,
    }


def one_update(config: TrainConfig) -> bool:
    """Whether the update's own forward pass gives the old log-probs of its batch (`verl/loss.py`).

    A separate pass is needed if several updates share the old log-probs, if these are written to a file, or if the
    user's overrides make verl process them.
    """
    alone = config.old_log_probs == "step" and config.mini_batches == 1 and not config.writes_rows
    alone = alone and config.imitated is None
    return alone and not any(word in key for key in config.overrides for word in ("rollout_correction", "ppo_epochs"))


def trains_sampler(config: TrainConfig) -> bool:
    """Whether the trained model sampled the rows, so that it must reproduce their log-probs.

    Episodes that are played ahead are those of an earlier checkpoint.
    """
    return not config.any_model and config.sampled_by in (None, config.model)


def training_settings(config: TrainConfig, data: TrainData, num_groups: int) -> dict[str, Any]:
    """Returns the settings of one training on its data. Batch sizes are nominal: the trainer sets them step by step."""
    plan = plan_for(config, data, num_groups)
    per_step = groups_per_step(config, data, num_groups)
    nominal = -(-per_step // config.workers) * config.workers  # verl's check wants a multiple
    longest = data.max_prompt_tokens + data.max_response_tokens
    return _model_settings(config) | {
        "data.train_files": str(config.data.resolve()),
        "data.val_files": str((config.held_out or config.data).resolve()),
        "data.train_batch_size": nominal,
        "data.max_prompt_length": data.max_prompt_tokens,
        "data.max_response_length": data.max_response_tokens,
        "actor_rollout_ref.actor.ppo_mini_batch_size": nominal,
        "actor_rollout_ref.actor.optim.total_training_steps": len(plan),
        "actor_rollout_ref.rollout.temperature": data.temperature,
        "trainer.total_epochs": config.epochs,
        "trainer.total_training_steps": len(plan),
        "trainer.experiment_name": name_of_run(config.output),
        "trainer.logger": list(config.loggers),
        "trainer.save_freq": config.save_every or len(plan),
        "trainer.default_local_dir": str(state_dir(config)),
        "+selfplay.groups_per_step": per_step,
        "+selfplay.groups_per_update": whole_batch(config, data) / config.mini_batches,
        **({"+selfplay.tokens_per_pass": tokens} if (tokens := config.limit_of_pass(longest)) else {}),
        "+selfplay.held_out": config.held_out is not None,
        "+selfplay.saves_state": config.saves_state,
        "+selfplay.model": config.model,
        "+selfplay.max_log_prob_gap": MAX_ROUNDING if trains_sampler(config) else None,
        "+selfplay.epochs": config.epochs,
        "+selfplay.seed": config.seed,
        "+selfplay.metrics_path": str(metrics_path(config)),
        "+selfplay.rows_path": str(config.output.resolve() / "trained_rows.jsonl"),
        "+selfplay.initial_trainer_state": str(config.initial_trainer_state.resolve())
        if config.initial_trainer_state
        else None,
        **{f"+selfplay.environment.{name}": value for name, value in logging_environment(config.output).items()},
    }


def _model_settings(config: TrainConfig) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": everywhere(config.base),
        "actor_rollout_ref.actor.optim.lr_scheduler_type": config.schedule,
        "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio": config.warm_up,
        "actor_rollout_ref.actor.data_loader_seed": config.seed,
        "actor_rollout_ref.actor.fsdp_config.seed": config.seed,
    }


def policy_settings(options: PolicyTraining, device: Device) -> dict[str, Any]:
    """Returns the settings that every training of a policy has: model, loss, optimizer, precision, processes."""
    half = resolve_dtype(options, device) == "bfloat16"
    flash = device == "cuda" and half and _flash_attention_installed()
    settings: dict[str, Any] = {
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": IMPORTANCE_THRESHOLD,
        "actor_rollout_ref.model.use_remove_padding": device == "cuda" and can_be_packed(options.base),
        "actor_rollout_ref.model.enable_gradient_checkpointing": options.gradient_checkpointing,
        "+actor_rollout_ref.model.override_config.attn_implementation": "flash_attention_2" if flash else "sdpa",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.ppo_epochs": 1,
        "actor_rollout_ref.actor.optim.lr": options.learning_rate,
        "actor_rollout_ref.actor.optim.weight_decay": 0.0,
        # One pass over all weights, many times faster than verl's default where the optimizer is in host memory.
        "+actor_rollout_ref.actor.optim.override_optimizer_config.fused": True,
        "actor_rollout_ref.actor.use_kl_loss": options.has_reference,
        "actor_rollout_ref.actor.kl_loss_coef": options.kl_coef,
        "trainer.nnodes": options.nodes,
        "trainer.n_gpus_per_node": options.gpus_per_node,
        "trainer.project_name": PROJECT,
        "+ray_kwargs.ray_init.address": options.ray_address,
        "hydra.output_subdir": None,
        "hydra/job_logging": "none",
        "hydra/hydra_logging": "none",
    }
    settings |= _precision("bf16" if half else "fp32") | _checkpoint(options)
    settings |= _CPU if device == "cpu" else _memory(options, half)
    return settings if options.joins_cluster else settings | _ray_of_its_own(options, device)


def can_be_packed(model: str) -> bool:
    """Whether only attention passes information between a model's tokens, so that rows in one sequence stay apart.

    Convolutions and recurrent layers would pass it from one row to the next. A model whose configuration cannot be read
    is reported elsewhere.
    """
    try:
        return only_attention(config_of(model))
    except UserError:
        return True


def _memory(options: TrainOptions, half: bool) -> dict[str, Any]:
    """Returns the settings of memory on a machine with GPUs.

    They use FSDP's offloading, because verl's own loads everything back for a step.
    """
    settings: dict[str, Any] = {"actor_rollout_ref.actor.fsdp_config.offload_policy": options.offload == "cpu"}
    if half:  # the reference model computes in bfloat16 in any case, and is kept in host memory
        settings["actor_rollout_ref.ref.fsdp_config.model_dtype"] = "bf16"
    return settings


def _checkpoint(options: PolicyTraining) -> dict[str, Any]:
    """Returns the settings for the content of a save.

    With LoRA it is only the adapter; servers get merged weights (`merge`).
    """
    state, contents = ["model", "optimizer", "extra"], "actor_rollout_ref.actor.checkpoint"
    if not options.lora_rank:
        return {f"{contents}.save_contents": [*state, "hf_model"], f"{contents}.load_contents": state}
    return {
        f"{contents}.save_contents": state,
        f"{contents}.load_contents": state,
        f"+{contents}.save_lora_only": True,
        "actor_rollout_ref.model.lora_rank": options.lora_rank,
        "actor_rollout_ref.model.lora_alpha": options.lora_rank,
        "actor_rollout_ref.model.target_modules": adapted_layers(options.base),
        "actor_rollout_ref.model.lora.merge": True,
    }


def adapted_layers(model: str) -> list[str] | str:
    """Returns the names of the layers that get an adapter, as peft takes them.

    A model whose configuration cannot be read is reported elsewhere.

    Raises:
        UserError: The model has experts, and its attention is not known.
    """
    targets, experts = list[str](), 0
    with suppress(UserError):
        experts = experts_of(config_of(model).get_text_config())
        targets = sizes_of(model).targets
    if experts and not targets:
        raise UserError(
            f"train.lora_rank: an adapter of {model} would change its experts, and could not be exported, since the "
            "layers of its attention are not known; train all weights (train.lora_rank: 0)"
        )
    return targets or "all-linear"


def _flash_attention_installed() -> bool:
    """Whether transformers can use flash attention; `flash-attn-4`, a module of the same name, does not count."""
    try:
        return Version(version("flash-attn")) >= Version("2.3.3")
    except PackageNotFoundError:
        return False


def to_hydra(settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as Hydra overrides."""
    return [f"{key}={_hydra(value)}" for key, value in settings.items()]


def environment(
    config: PolicyTraining, device: Device, base: Mapping[str, str] = os.environ, extension: str = EXTENSION
) -> dict[str, str]:
    """Returns the environment of the trainer and, if it starts Ray itself, of all its processes."""
    env = worker_environment(device, base, extension) | {"RAY_DEDUP_LOGS": "0", "HYDRA_FULL_ERROR": "1"}
    if config.joins_cluster:
        return env
    env |= loopback_environment() | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",
    }
    if device == "cpu":
        # To Ray these are its logical GPUs, to CUDA there is no such device.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(["-1"] * config.gpus_per_node)
    return env


def worker_environment(
    device: Device, base: Mapping[str, str] = os.environ, extension: str = EXTENSION
) -> dict[str, str]:
    """Returns the environment variables that each of verl's processes needs on any machine."""
    env = {"VERL_USE_EXTERNAL_MODULES": extension, "TOKENIZERS_PARALLELISM": "false"}
    if device == "cpu":
        env |= {
            "VERL_PLATFORM": "cpu",
            "TQ_NUM_THREADS": "1",
            "OMP_NUM_THREADS": base.get("OMP_NUM_THREADS", "1"),
            # A thread that never sleeps while it waits takes the core that this one may need; one that sleeps at once
            # wakes too late.
            "GOMP_SPINCOUNT": base.get("GOMP_SPINCOUNT", "3000"),
        }
    return env


def for_workers(config: TrainOptions, env: Mapping[str, str]) -> list[str]:
    """Returns Hydra overrides that pass environment variables to workers of a running cluster; none if we start Ray.

    All users of the cluster can read these variables.
    """
    if not config.joins_cluster:
        return []
    return [f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}={_quoted(value)}" for name, value in env.items()]


def worker_threads(workers: int, base: Mapping[str, str] = os.environ, *, spare: int = 0) -> int:
    """Returns the number of threads of each training process: OMP_NUM_THREADS, else an equal share of all cores but
    `spare`.

    By default, Ray gives a process one thread. With `train.offload: cpu`, the optimizer runs on the CPU even on a
    machine with GPUs.
    """
    return named_threads(base) or max(1, (len(os.sched_getaffinity(0)) - spare) // workers)


def named_threads(base: Mapping[str, str] = os.environ) -> int | None:
    """Returns the number of OMP_NUM_THREADS, the first one of a list such as `4,2`; None if it names none."""
    found = re.match(r"\s*(\d+)", base.get("OMP_NUM_THREADS", ""))
    return int(found[1]) or None if found else None


def everywhere(model: str) -> str:
    """Returns a model's name that is valid in any working directory: an absolute path or a hub name."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


def state_dir(config: PolicyTraining) -> Path:
    """Returns the folder where verl saves shards, optimizer and progress."""
    return config.output.resolve() / "trainer_state"


def metrics_path(config: PolicyTraining) -> Path:
    """Returns the path of the metrics, one JSON line per step."""
    return config.output.resolve() / "metrics.jsonl"


def _precision(short: str) -> dict[str, Any]:
    """Returns the settings of precision: the dtype `short` in the forward pass, float32 for weights, reduction and
    buffers.
    """
    settings = {}
    for role in ("actor", "ref"):
        prefix = f"actor_rollout_ref.{role}.fsdp_config"
        settings[f"{prefix}.dtype"] = "float32" if short == "fp32" else "bfloat16"
        settings[f"+{prefix}.mixed_precision.param_dtype"] = short
        settings[f"+{prefix}.mixed_precision.reduce_dtype"] = "fp32"
        settings[f"+{prefix}.mixed_precision.buffer_dtype"] = "fp32"
    return settings


_CPU = {
    "trainer.device": "cpu",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
}


def _ray_of_its_own(options: TrainOptions, device: Device) -> dict[str, Any]:
    settings: dict[str, Any] = {"+ray_kwargs.ray_init.include_dashboard": False}
    if device == "cpu":
        settings |= {
            # Logical: Ray only counts them; verl reserves several per training process.
            "ray_kwargs.ray_init.num_cpus": 8 + 8 * options.workers,
            "+ray_kwargs.ray_init.num_gpus": options.workers,
            "+ray_kwargs.ray_init.object_store_memory": OBJECT_STORE_BYTES,
        }
    return settings


def _hydra(value: Any) -> str:
    """Returns a value in Hydra's override grammar: strings in quotes if they need them, everything else as JSON.

    Without quotes, `8` would become a number and `true` a truth value, such as in the name of a folder.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_hydra, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    if (
        value.isascii()
        and value[:1].isalpha()
        and value.lower() not in ("true", "false", "null", "inf", "nan")
        and all(character.isalnum() or character in "_-." for character in value)
    ):
        return value
    return _quoted(value)


def _quoted(value: str) -> str:
    """Returns a string in quotes of Hydra's grammar, where a backslash counts only before a quote or an interpolation.

    Source: https://hydra.cc/docs/advanced/override_grammar/basic/#quoted-values.
    """
    value = re.sub(r"(\\*)\$\{", lambda start: start[1] * 2 + r"\${", value)
    return '"' + re.sub(r'(\\*)("|$)', lambda end: end[1] * 2 + ('\\"' if end[2] else ""), value) + '"'
