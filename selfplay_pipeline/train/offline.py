"""`selfplay train`: checks the data, runs verl as a child process, monitors it and checks its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import check_same, deciding, portable
from selfplay_pipeline.config.training import WRITES_ROWS, PolicyTraining, TrainConfig, TrainOptions
from selfplay_pipeline.convert.parquet import sampler_of
from selfplay_pipeline.core.checkpoints import check_checkpoint, vocabulary_of
from selfplay_pipeline.core.content_hash import content_hash, file_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import locked, write_json
from selfplay_pipeline.core.folders import TRAINING_RECORD, own_folder
from selfplay_pipeline.core.gpus import Device, resolve_device
from selfplay_pipeline.core.processes import check_open_files
from selfplay_pipeline.core.reporting import Update, logger, progress
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.generate.preflight import check_gpus
from selfplay_pipeline.train.cluster import check_cluster
from selfplay_pipeline.train.groups import Group, TrainData, read_data
from selfplay_pipeline.train.loggers import check_loggers
from selfplay_pipeline.train.memory_check import check_fits
from selfplay_pipeline.train.process import StartSettings, Trainer, TrainError
from selfplay_pipeline.train.saves import (
    HELD_OUT_LOSSES,
    NewLines,
    go_back_to_last_logged_save,
    keep_lines,
    prune,
    read_lines,
    saved_adapter,
    saved_step,
    seconds_of,
)
from selfplay_pipeline.train.task import Export, Task
from selfplay_pipeline.train.verl_overrides import (
    SET_BY_TRAINERS,
    check_not_set_by,
    check_overrides,
    environment,
    metrics_path,
    plan_for,
    preparing_overrides,
    resolve_dtype,
    state_dir,
    verl_overrides,
)


@dataclass(frozen=True)
class TrainResult:
    """Result of a training; all figures except seconds include the steps of earlier processes."""

    steps: int
    groups: int
    """Number of groups trained on in each epoch."""
    groups_without_signal: int
    rows: int
    """Number of rows in `groups`."""
    checkpoint: Path
    """Folder of the Hugging Face checkpoint."""
    trainer_state: Path
    metrics_path: Path
    seconds_total: float
    seconds_in_steps: float
    """Seconds within the training steps of this process, without saving."""
    log_prob_gap: float | None
    """Mean |trainer - engine| of the stored log-probs at the first step, in nats.

    Trainer and engine have the same weights at this step. None with `old_log_probs: games`, because the trainer then
    computes no log-probs.
    """
    updates: int = 0
    """Number of optimizer steps; one step of verl has several if its batch is split into mini-batches."""
    own_tokens: int = 0
    """Number of sampled tokens trained on, counted once per epoch."""
    held_out_losses: tuple[float, ...] = ()
    """Mean negative log-prob of the held-out rows' imitated tokens in nats: before the first step and after each epoch.
    """


async def run_train(config: TrainConfig, trainer: Trainer | None = None) -> TrainResult:
    """Train a policy on converted episodes and return the result; an interrupted training continues at its last save.

    Args:
        config: The training.
        trainer: verl's process, which keeps running afterwards. None checks the configured cluster, if any, and starts
            a process for this training only.

    Raises:
        UserError: Data or options are unusable, or another model sampled the rows, by their metadata or log-probs.
        NoSignalError: No group has episodes with different rewards (also a UserError).
        TrainError: verl failed.
    """
    with progress(f"training on {config.data.name}", "waiting for step 1") as report:
        return await _trained(config, trainer, report)


def say_where_it_continues(state: Path, planned: int, save_every: int) -> None:
    """Report the step after the last save, at which a stopped training continues, and how to save more often."""
    more = "" if save_every else "; `--set train.save_every=N` saves every N steps"
    logger.info(f"the training continues at step {saved_step(state) + 1} of {planned}{more}")


async def _trained(config: TrainConfig, trainer: Trainer | None, report: Update) -> TrainResult:
    began = time.monotonic()
    with computing():
        _check_training_of(config, trainer)
        if trainer is None and not exported(state_dir(config), config.output / "checkpoint"):
            check_cluster(config, [config.model, config.reference_model, config.data], config.output)
        data, groups, planned = _read_groups(config)
    state, metrics = state_dir(config), metrics_path(config)
    checkpoint = config.output.resolve() / "checkpoint"
    with locked(config.output / ".train.lock", f"training folder {config.output}"):
        with computing():
            claim(config, _record(config, data, groups))
            check_checkpoint_remains(config)
        done = go_back_to_last_logged_save(state, metrics)
        keep_lines(metrics, done)
        keep_lines(config.output / "trained_rows.jsonl", done)
        seconds_in_steps = 0.0

        def watch(step: int, line: dict[str, Any]) -> None:
            nonlocal seconds_in_steps
            seconds_in_steps += seconds_of(line)
            loss = line.get("actor/pg_loss", line.get("selfplay/loss", 0.0))
            norm = line.get("actor/grad_norm", 0.0)
            report(step, planned, lambda: f"steps, loss {loss:+.4f}, gradient norm {norm:.3f}")

        if done < planned or not exported(state, checkpoint):
            with nullcontext(trainer) if trainer else Trainer() as process:
                try:
                    await _run_verl(config, data, groups, planned, done, watch, process)
                except UserError:
                    if not saved_step(state):  # the same folder may then be given with other rows
                        (config.output / TRAINING_RECORD).unlink()
                    raise
                except asyncio.CancelledError:
                    say_where_it_continues(state, planned, config.save_every)
                    raise
        done = saved_step(state)
        lines = read_lines(metrics)
        steps = [line["step"] for line in lines]
        if done != planned or steps != list(range(1, planned + 1)):
            raise TrainError(
                f"verl did {len(steps)} steps and saved step {done}, {planned} were planned; see {log_path(config)}"
            )
        prune(state, done)
    return TrainResult(
        steps=len(steps),
        groups=len({group.key for group in groups}),
        groups_without_signal=data.signal.without,
        rows=sum(len(group.rows) for group in groups),
        checkpoint=checkpoint,
        trainer_state=state,
        metrics_path=metrics,
        seconds_total=time.monotonic() - began,
        seconds_in_steps=seconds_in_steps,
        log_prob_gap=lines[0].get("selfplay/log_prob_gap/mean"),
        updates=round(sum(line.get("selfplay/updates", 1) for line in lines)),
        own_tokens=round(sum(line.get("selfplay/own_tokens", 0) for line in lines)),
        held_out_losses=tuple(line[name] for line in lines for name in HELD_OUT_LOSSES if name in line),
    )


def plan_train(config: TrainConfig) -> str:
    """Returns a one-line description of the work that `run_train` would do; writes nothing.

    Raises:
        UserError: The training would be refused.
    """
    _check_training_of(config)
    data, groups, planned = _read_groups(config)
    check_claim(config, _record(config, data, groups))
    check_checkpoint_remains(config)
    rows, done = sum(len(group.rows) for group in groups), saved_step(state_dir(config))
    return (
        f"{config.model} is trained on {rows} rows in {len(groups)} groups of {config.data}, to {config.output}; steps "
        f"done: {done} of {planned}"
    )


def _check_training_of(config: TrainConfig, trainer: Trainer | None = None) -> None:
    check_options(config, config.base_model, config.reference_model)
    if config.lora_rank and config.has_reference and config.reference_model not in (None, config.base):
        raise UserError(
            f"reference_model {config.reference_model}: with lora_rank the reference policy is {config.base}, the "
            "model without the adapter; leave it out"
        )
    if (
        config.lora_rank
        and config.initial_trainer_state is None
        and config.base != config.model
        and content_hash(config.base) != content_hash(config.model)
    ):
        raise UserError(
            f"{config.output}: the adapter that made {config.model} is gone, and training would begin with "
            f"{config.base} again; put the folder trainer_state of the last trained iteration back, or begin a new run "
            "with this model"
        )
    check_sampler(config)
    state = config.initial_trainer_state
    if state is not None and not (trainer and trainer.holds(state)):
        _check_initial_state(config, state)


def _read_groups(config: TrainConfig) -> tuple[TrainData, list[Group], int]:
    """Returns the data, the groups to train on, and the number of steps.

    Raises:
        UserError: The data are unusable, or do not fit into memory.
        NoSignalError: No group has episodes with different rewards.
    """
    data = read_data([config.data], vocabulary_of(config.model), alone=config.imitated == 0)
    longest = data.max_prompt_tokens + data.max_response_tokens
    tokens = config.limit_of_pass(longest) or longest  # counted rows may be shorter than the two maxima together
    check_fits(
        config,
        resolve_device(config.device),
        config.model,
        tokens=tokens,
        longest=longest,
        shares_gpu=config.shares_gpu,
    )
    groups = data.to_train(config.keep_zero_signal, config.imitated)
    return data, groups, len(plan_for(config, data, len(groups)))


def start_settings(config: TrainConfig, device: Device) -> StartSettings:
    """Returns the settings with which verl's processes are started for this training."""
    where = f"{config.nodes} × {config.gpus_per_node} workers, Ray: {config.ray_address}"
    imitates = config.imitated is not None
    parts = {"adapter": config.lora_rank > 0, "reference": config.has_reference, "imitates": imitates}
    settings = (where, *(f"{name}: {there}" for name, there in parts.items()), *config.overrides)
    return StartSettings(settings, environment(config, device))


def prepare_training(config: TrainConfig, trainer: Trainer, log: Path) -> None:
    """Start verl's process for a training whose data do not exist yet, unless a suitable one runs.

    Args:
        config: The training; its data and output are not read.
        trainer: Holder of the process.
        log: File for verl's output until the training begins.
    """
    device = resolve_device(config.device)
    start, overrides = start_settings(config, device), preparing_overrides(config, device)
    trainer.prepare(start, Task(log=log, overrides=overrides, joins_cluster=config.joins_cluster))


async def _run_verl(
    config: TrainConfig,
    data: TrainData,
    groups: list[Group],
    planned: int,
    done: int,
    watch: Callable[[int, dict[str, Any]], None],
    trainer: Trainer,
) -> None:
    state, device = state_dir(config), resolve_device(config.device)
    task = Task(
        log=log_path(config),
        overrides=verl_overrides(config, data, len(groups), device) if done < planned else [],
        export=export_of(config, device, planned),
        joins_cluster=config.joins_cluster,
    )
    follow = follower(NewLines(metrics_path(config)).read, done, watch)
    await trainer.run(start_settings(config, device), task, follow)
    if task.overrides:
        trainer.trained = state
    write_json(state / "exported.json", {"step": planned})


def export_of(config: PolicyTraining, device: Device, step: int) -> Export:
    """Returns the checkpoint to write after the last step, and its sources."""
    adapter = saved_adapter(state_dir(config), step)
    return Export(
        saved=str(adapter if config.lora_rank else adapter.with_name("huggingface")),
        model=config.model,
        checkpoint=str(config.output.resolve() / "checkpoint"),
        dtype=resolve_dtype(config, device),
        base=config.base if config.lora_rank else None,
    )


def follower(
    read: Callable[[], list[dict[str, Any]]], done: int, watch: Callable[[int, dict[str, Any]], None]
) -> Callable[[], bool]:
    """Returns a function that reports new training steps each time it is called while verl trains.

    The function returns True once a step has been logged that earlier processes had not done.

    Args:
        read: Function that returns the new lines of metrics.
        done: Number of steps of earlier processes, which are not reported again.
        watch: Function that receives each new step and its line.
    """

    before = done

    def look() -> bool:
        nonlocal done
        for line in read():
            if line["step"] > done:
                done = line["step"]
                watch(done, line)
        return done > before

    return look


def _record(config: TrainConfig, data: TrainData, groups: list[Group]) -> dict[str, Any]:
    """Returns the settings and hashes that identify a training."""
    return deciding(config, "train") | {
        "data": str(config.data.resolve()),
        "rows": file_hash(config.data),
        **hashes_of(config),
        "groups": len(groups),
        "generate.temperature": data.temperature,
    }


def hashes_of(config: PolicyTraining) -> dict[str, str]:
    """Returns the content hashes of the models that a training reads, by their names in its record.

    A hash covers the files' bytes when the training begins or continues. Later changes are not detected.
    """
    models = {name: getattr(config, name, None) for name in ("model", "base_model", "reference_model")}
    return {f"weights.{name}": content_hash(model) for name, model in models.items() if model is not None}


def check_sampler(config: TrainConfig) -> None:
    """Raises UserError unless the model, or `sampled_by` if it is given, sampled the rows, or `any_model` is set.

    The content hashes are compared, so the model may have been moved or copied. Rows of a hub model that an attached
    server played have no hash; the names are compared.
    """
    if config.any_model:
        return
    advice = "give --any-model to train a model whose log-probs the rows do not hold"
    found, expected = sampler_of(config.data), config.sampled_by or config.model
    if found is None:
        raise UserError(f"{config.data}: does not say which model sampled its rows; play again, or {advice}")
    if not found.weights:
        if found.checkpoint != expected:
            raise UserError(
                f"{config.data}: sampled by {found.checkpoint} on an attached server, not by {expected}; give "
                f"--model {found.checkpoint}, or {advice}"
            )
        return
    weights = content_hash(expected)
    if weights != found.weights:
        raise UserError(
            f"{config.data}: sampled by {found.checkpoint} with the content hash {found.weights}, but {expected} "
            f"has {weights} now; give --model with the model that sampled the rows, play again with this one, or "
            f"{advice}"
        )


def claim(config: PolicyTraining, training: dict[str, Any], command: str = "train") -> None:
    """Record in the folder that it belongs to this training; a later call for another training is rejected.

    Raises:
        UserError: The folder holds another training.
    """
    begun = check_claim(config, training)
    own_folder(config.output, command)
    if not begun:
        write_json(config.output / TRAINING_RECORD, portable(training, config.output))


def check_claim(config: PolicyTraining, training: dict[str, Any]) -> bool:
    """Whether the folder already belongs to this training.

    Raises:
        UserError: The folder holds another training.
    """
    record, training = config.output / TRAINING_RECORD, portable(training, config.output)
    if not record.exists():
        return False
    check_same(config.output, read_object(record, "selfplay train"), training)
    return True


def check_options(config: PolicyTraining, *further_models: str | None) -> None:
    """Raises UserError unless models, loggers, GPUs, LoRA's target layers and the keys of overrides exist."""
    for name in (config.model, *further_models):
        if name is not None:
            check_checkpoint(name)
    check_training(config, resolve_device(config.device))
    if isinstance(config, TrainConfig):
        check_verls_keys(config)


SET_BY_TRAINER = {
    "data.train_batch_size": "train.train_batch_size",
    "data.seed": "seed",
    "data.shuffle": "seed",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "train.train_batch_size and train.mini_batches",
    "actor_rollout_ref.actor.optim.lr": "train.learning_rate and iterate.decay_iterations",
    "actor_rollout_ref.rollout.temperature": "generate.temperature",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": "train.micro_batch_size",
    "actor_rollout_ref.actor.use_kl_loss": "train.kl_coef",
    "actor_rollout_ref.actor.kl_loss_coef": "train.kl_coef",
    "actor_rollout_ref.rollout.n": "generate.episodes_per_state",
    "algorithm.use_kl_in_reward": "train.kl_coef",
    "data.train_files": "the argument DATA",
    "trainer.test_freq": "`selfplay evaluate`",
    "trainer.total_epochs": "train.epochs",
    "trainer.total_training_steps": "train.epochs",
    "trainer.val_before_train": "`selfplay evaluate`",
    "trainer.val_only": "`selfplay evaluate`",
    **SET_BY_TRAINERS,
}
"""Keys of verl that would have no effect as overrides, or contradict others, with what to use in their place."""
SET_BY_ITERATIONS = {
    f"actor_rollout_ref.actor.optim.{name}": "iterate.decay_iterations"
    for name in ("lr_scheduler_type", "min_lr_ratio", "num_cycles")
}
"""Keys of verl's schedule. verl counts the steps of one training, not of all iterations."""


def check_verls_keys(config: TrainConfig) -> None:
    """Raises UserError unless verl takes the user's overrides, and the trainer leaves them as they are."""
    check_not_set_by(SET_BY_TRAINER, config.overrides)
    check_overrides(config, preparing_overrides(config, resolve_device(config.device)))


def check_training(options: TrainOptions, device: Device) -> None:
    """Raises UserError unless the loggers are usable and this machine has what the trainer needs: GPUs, open files.

    Several nodes without a cluster are rejected too; `check_cluster` checks the machines of a cluster.
    """
    check_open_files()
    check_loggers(options.loggers)
    if options.writes_rows and options.imitated is not None:
        raise UserError(f"train.overrides: {WRITES_ROWS!r}: rows that are imitated have no advantages; leave it out")
    if options.best_of_group is not None and options.imitated is None:
        raise UserError(
            "train.best_of_group: GRPO compares all episodes of a group; leave it out, or give train.method filtered-bc"
        )
    if options.joins_cluster:
        return
    if options.nodes > 1:
        raise UserError(
            f"train.nodes {options.nodes}: this machine is one node; start a Ray cluster, and give train.ray_address "
            "(auto, or HOST:PORT of its head)"
        )
    if device == "cuda":
        check_gpus(options.gpus_per_node, f"train.gpus_per_node {options.gpus_per_node}")


def _check_initial_state(config: TrainConfig, state: Path) -> None:
    step = saved_step(state)
    adapter = saved_adapter(state, step)
    shard = adapter.with_name(f"model_world_size_{config.workers}_rank_0.pt")
    if not step:
        raise UserError(
            f"{state}: no trainer state there; put the save back, or remove the folder to begin with the weights of "
            "the model and a new optimizer"
        )
    if config.lora_rank and not adapter.exists():
        raise UserError(f"{state}: saved without a LoRA adapter; leave out initial_trainer_state, or lora_rank")
    if not shard.exists():
        raise UserError(
            f"{state}: saved with another number of training processes than nodes={config.nodes} × "
            f"gpus_per_node={config.gpus_per_node}"
        )


def exported(state: Path, checkpoint: Path) -> bool:
    return (state / "exported.json").exists() and (checkpoint / "config.json").exists()


def check_checkpoint_remains(config: PolicyTraining) -> None:
    """Raises UserError if the checkpoint of a finished training was removed and cannot be written anew.

    The last save then has the trainer's state, but no copy of the weights for a checkpoint. That of an adapter has one.
    """
    state, checkpoint = state_dir(config), config.output / "checkpoint"
    finished = (state / "exported.json").exists() and not exported(state, checkpoint)
    if finished and not config.lora_rank and not any(state.glob("global_step_*/actor/huggingface/*.safetensors")):
        raise UserError(
            f"{checkpoint}: was removed after the training; put it back, or train again with another --output"
        )


def log_path(config: PolicyTraining) -> Path:
    return config.output.resolve() / "train.log"
