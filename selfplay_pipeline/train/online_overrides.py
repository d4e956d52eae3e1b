"""Translation of the options of online training to overrides of `matching_selfplay_online_grpo.yaml`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.core.gpus import Device
from selfplay_pipeline.games.registry import known, place_of
from selfplay_pipeline.generate.run import MAX_FAILURES
from selfplay_pipeline.train.loggers import logging_environment, name_of_run
from selfplay_pipeline.train.verl_overrides import (
    everywhere,
    for_workers,
    policy_settings,
    resolve_dtype,
    state_dir,
    to_hydra,
    worker_environment,
)

EXTENSION = "selfplay_pipeline.train.verl.load_online"
CONFIG_NAME = "matching_selfplay_online_grpo"
CPU_ROLLOUT = "sglang_cpu"
TOKENS_PER_PASS = {"cuda": 16384, "cpu": 4096}
"""Default number of tokens in one forward and backward pass of online training, by device."""
DIALOGUES = 4
"""Number of episodes of each validation that verl sends to the loggers: prompt, tokens and reward of the last seat that
spoke. Ordered by their prompts and shuffled with a fixed seed, the first are taken: of the same states in each
validation, unless the history is rendered, so that the last prompt holds the dialogue."""

MAX_AGENT_WORKERS = 8
"""Largest number of processes that play the episodes of a step; verl's own default."""


class InVerl(NamedTuple):
    """Names in `verl/` for a value of `online.mode`."""

    trainer: str
    buffer: str


TRAINERS = {
    "sync": InVerl("online", "CountingBuffer"),
    "colocate_async": InVerl("online_colocate_async", "AsyncBuffer"),
}


def online_tokens_of_pass(train: TrainOptions, device: Device, context: int) -> int:
    """Returns the tokens of one forward and backward pass of online training on one device.

    Args:
        train: The options of training.
        device: The device to train on.
        context: The context length, which is the limit of a row.
    """
    return train.limit_of_pass(context) or max(TOKENS_PER_PASS[device], context)


def config_folder() -> Path:
    """Returns the folder with verl's configuration file and the list of agent loops."""
    return Path(__file__).with_name("verl")


def held_out_path(config: OnlineConfig) -> Path:
    """Returns the file of held-out figures, one line per validation, later copied to metrics.jsonl."""
    return state_dir(config) / "held_out.jsonl"


def versions_path(config: OnlineConfig) -> Path:
    """Returns the file with the weight versions of the rows of each step."""
    return config.output.resolve() / "weight_versions.jsonl"


def verl_log(config: OnlineConfig) -> Path:
    """Returns the file of verl's metrics; each of verl's processes overwrites it."""
    return state_dir(config) / "verl_metrics.jsonl"


def file_environment(config: OnlineConfig) -> dict[str, str]:
    """Returns the environment variables that name the files for metrics."""
    return logging_environment(config.output) | {"VERL_FILE_LOGGER_PATH": str(verl_log(config))}


@dataclass(frozen=True)
class StatesFile:
    """Size of train.parquet."""

    rows: int
    rows_per_episode: int
    """Number of training rows per episode: one per player, or a single one."""


def online_overrides(config: OnlineConfig, games: StatesFile, device: Device) -> list[str]:
    """Returns the Hydra overrides of an online training; the user's own come last and take precedence."""
    online, rollout, state = config.online, "actor_rollout_ref.rollout", state_dir(config)
    settings: dict[str, Any] = {
        "selfplay.game": place_of(known(config.game.name)),
        "selfplay.max_new_tokens": config.generate.max_new_tokens,
        "selfplay.thinking": config.generate.thinking,
        "selfplay.template_args": json.dumps(config.generate.template_args),
        "selfplay.date": config.generate.date,
        "selfplay.history": config.generate.history,
        "selfplay.rows_per_step": games.rows_per_episode * online.states_per_step,
        "data.train_files": str((config.games / "train.parquet").resolve()),
        "data.val_files": str((config.games / "test.parquet").resolve()),
        "data.train_batch_size": online.states_per_step,
        "data.seed": config.seed,
        # The two sum to the context: verl's V1 trainer pads to neither, and the agent loop checks the sum.
        "data.max_prompt_length": config.context_length // 2,
        "data.max_response_length": config.context_length - config.context_length // 2,
        "actor_rollout_ref.model.path": everywhere(config.model),
        # verl multiplies by the episodes of a state. All rows of a step are one update: a step has at most so many.
        "actor_rollout_ref.actor.ppo_mini_batch_size": games.rows_per_episode * online.states_per_step,
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": online_tokens_of_pass(
            config, device, config.context_length
        ),
        "actor_rollout_ref.actor.data_loader_seed": config.seed,
        "actor_rollout_ref.actor.fsdp_config.seed": config.seed,
        f"{rollout}.n": config.generate.episodes_per_state,
        f"{rollout}.max_model_len": config.context_length,
        f"{rollout}.temperature": config.generate.temperature,
        f"{rollout}.val_kwargs.temperature": config.generate.temperature,
        f"{rollout}.tensor_model_parallel_size": config.tensor_parallel,
        f"{rollout}.dtype": resolve_dtype(config, device),
        f"{rollout}.agent.agent_loop_config_path": str(config_folder() / "agent_loops.yaml"),
        "trainer.v1.trainer_mode": TRAINERS[online.mode].trainer,
        "trainer.v1.sampler.custom_sampler.name": TRAINERS[online.mode].buffer,
        "trainer.v1.sampler.sampler_kwargs.max_failures": MAX_FAILURES,
        "trainer.v1.sampler.sampler_kwargs.versions_path": str(versions_path(config)),
        "trainer.v1.sampler.sampler_kwargs.held_out_path": str(held_out_path(config)),
        "trainer.total_training_steps": online.steps,
        "trainer.total_epochs": -(-online.steps // (games.rows // online.states_per_step)),
        "trainer.experiment_name": name_of_run(config.output),
        "trainer.logger": [*config.loggers, "file"],
        "trainer.log_val_generations": DIALOGUES,
        "trainer.test_freq": online.validate_every or online.steps,
        "trainer.save_freq": config.save_every or online.steps,
        "trainer.default_local_dir": str(state),
        "trainer.max_actor_ckpt_to_keep": 2,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    }
    if online.mode != "sync":
        settings["data.gen_batch_size"] = 1  # so that any number of states can be started
    if device == "cuda":
        waits = "actor_rollout_ref.actor.fsdp_config"  # one GPU offloads to host memory while the server plays
        settings |= {f"{waits}.{part}_offload": config.workers == 1 for part in ("param", "optimizer")}
        # One process asked an H200 for 70 to 99 completions a second: the episodes waited for Python, not for the GPU.
        settings[f"{rollout}.agent.num_workers"] = max(1, min(MAX_AGENT_WORKERS, (os.cpu_count() or 1) // 2))
    else:
        settings |= {
            f"{rollout}.name": CPU_ROLLOUT,
            f"{rollout}.free_cache_engine": False,
            f"+{rollout}.engine_kwargs.{CPU_ROLLOUT}.folder": str(config.output.resolve()),
            f"+{rollout}.engine_kwargs.{CPU_ROLLOUT}.context_length": config.context_length,
        }
    env = worker_environment(device, extension=EXTENSION) | file_environment(config)
    return [*to_hydra(policy_settings(config, device) | settings), *for_workers(config, env), *config.overrides]
