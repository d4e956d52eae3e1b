"""verl's PPO trainer on stored episodes."""

from __future__ import annotations

import json
import math
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.checkpoint_callback import build_checkpoint_callback
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.checkpoint.checkpoint_manager import find_latest_ckpt_path
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry
from verl.workers.utils.padding import response_from_nested

from selfplay_pipeline.convert.rows import WEIGHT
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending
from selfplay_pipeline.train.groups import by_length, mixed, plan_steps, split_rows, updates_of
from selfplay_pipeline.train.verl.guard import Guarded, loading
from selfplay_pipeline.train.verl.loss import ONE_UPDATE
from selfplay_pipeline.train.verl.replay import place_in
from selfplay_pipeline.train.verl.worker import PolicyWorker, ReferenceWorker
from selfplay_pipeline.train.verl_overrides import IMPORTANCE_THRESHOLD

Values = dict[str, np.ndarray]
"""Numbers of a row by field name."""
PASS_FIELDS = [
    "input_ids", "position_ids", "prompts", "responses", "response_mask", "loss_mask",
    "old_log_probs", "ref_log_prob", "advantages", "rollout_is_weights", WEIGHT,
]  # fmt: skip
"""Fields of a row that a forward or backward pass reads, if present.

The other fields are not tensors, and TensorDict would copy them one by one in each pass: a tenth of a step.
"""

ROWS_BEFORE = 16
"""Largest number of rows per process whose log-probs are compared before the first update."""


class NoReplica(RolloutReplica):  # type: ignore[misc]
    """Placeholder rollout replica; verl needs its class but never creates an instance."""


RolloutReplicaRegistry.register("offline", lambda: NoReplica)


class MetricsFile:
    """verl's logger backend for metrics.jsonl: appends one line per step; verl's own file logger truncates."""

    def __init__(self, path: Path, trainer: OfflineTrainer) -> None:
        self._path, self._trainer = path, trainer

    def log(self, data: dict[str, Any], step: int) -> None:
        groups = [self._trainer.train_dataset.groups[position] for position in self._trainer.plan[step - 1]]
        line = {"step": step, "time": time.time(), "groups": [[group.file, group.index] for group in groups]}
        metrics = {name: number for name, value in sorted(data.items()) if (number := _number(value)) is not None}
        with appending(self._path) as append:
            append(json.dumps(line | metrics).encode() + b"\n")


@register_trainer("offline")
class OfflineTrainer(Guarded, PPOTrainer):  # type: ignore[misc]
    """verl's synchronous trainer on stored trajectories, with steps of varying size.

    verl takes equal batches and drops the remainder. Here a plan lists the groups of each step, and the batch,
    mini-batch and micro-batch sizes are set for each step. So no row is dropped, and few are padded.
    """

    _enable_hybrid_replicas = False
    _held: Path | None = None
    """Save that is in memory with weights and optimizer, which the save itself may lack; None if none is."""
    _untouched: tuple[str, int] | None = None
    """Model that is in memory with its original weights and a new optimizer, and the seed of its LoRA adapter."""

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"
        return super()._build_replay_buffer()

    def _init_dataloader(self) -> None:
        """Create no dataloader, since the data come with each training."""

    def _load_checkpoint(self) -> None:
        """Load nothing, since the initial weights come with each training."""

    def take(self, config: Any) -> None:
        """Switch to a training: its settings, data and folders, and its initial weights and optimizer."""
        self.config = config
        self.checkpoint_callback = build_checkpoint_callback(config)
        self.replay_buffer = self._build_replay_buffer()
        self._init_dump_executor()
        super()._init_dataloader()
        options = self.config.selfplay
        self.plan = plan_steps(len(self.train_dataset), options.groups_per_step, options.epochs, options.seed)
        if len(self.plan) != self.total_training_steps:
            raise RuntimeError(f"{len(self.plan)} steps in the plan, {self.total_training_steps} in verl's config")
        self.steps_per_epoch = len(self.plan) // options.epochs
        continues = options.initial_trainer_state or find_latest_ckpt_path(config.trainer.default_local_dir)
        if made_with(config) != self._made_with or not (continues or self._untouched == self._fresh):
            self._make_workers()
        super()._load_checkpoint()
        if self.global_steps == 0 and options.initial_trainer_state:
            self._continue(options.initial_trainer_state)
        # Last, because a loaded optimizer brings its old rate.
        self.actor_rollout_wg.set_learning_rate(config.actor_rollout_ref.actor.optim.lr)

    @property
    def _fresh(self) -> tuple[str, int]:
        """Value of `_untouched` right after the workers are created for this training."""
        policy = self.config.actor_rollout_ref
        return str(policy.model.path), policy.actor.fsdp_config.seed if policy.model.lora_rank else 0

    def _make_workers(self) -> None:
        self._init_tokenizer()
        self.actor_rollout_wg.rebuild(self.config.actor_rollout_ref)
        if self.use_reference_policy and not self.ref_in_actor:
            self.ref_policy_wg.rebuild(self.config.actor_rollout_ref)
        self._made_with, self._untouched, self._held = made_with(self.config), self._fresh, None

    def _continue(self, earlier: str) -> None:
        """Begin with the weights of an earlier training, which may still be in memory.

        Optimizer and scheduler continue too. Step number and data position start anew, since the data are new.
        """
        save = Path(find_latest_ckpt_path(earlier))
        if save != self._held:
            self._untouched = None
            with loading(earlier):
                self.actor_rollout_wg.load_checkpoint(str(save / "actor"))

    def _save_checkpoint(self) -> None:
        last = self.global_steps == self.total_training_steps
        # With a warm-up, a training of another number of steps would make the workers anew.
        stays = "total_training_steps" not in self._made_with["actor"]["optim"]
        self._with_state = self.config.selfplay.saves_state or not (last and stays)
        self.actor_rollout_wg.save_state(self._with_state)
        super()._save_checkpoint()
        self._held = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        # From here to the next save, no file has the weights in memory.
        self._held = self._untouched = None
        if self.config.selfplay.one_update:
            batch.extra_info[ONE_UPDATE] = IMPORTANCE_THRESHOLD
        batch = super()._update_actor(self._in_passes(batch), metrics)
        for name in [name for name in metrics if name.startswith(("actor/rollout_corr/", "actor/selfplay/"))]:
            metrics[name.removeprefix("actor/")] = metrics.pop(name)
        return batch

    def finish(self, exit_code: int) -> None:
        """Close the loggers of the training."""
        self.logger.finish(exit_code=exit_code)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        self.role_worker_mapping[Role.Actor] = ray.remote(PolicyWorker)
        if Role.RefPolicy in self.role_worker_mapping:
            self.role_worker_mapping[Role.RefPolicy] = ray.remote(ReferenceWorker)
        self._made_with, self._untouched = made_with(self.config), self._fresh

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        positions = self.plan[self.global_steps - 1]
        items = [self.train_dataset[position] for position in positions]
        batch = collate_fn(items)
        batch["uid"] = np.array([str(uuid.uuid4()) for _ in items], dtype=object)
        self._position_of = dict(zip(batch["uid"], positions, strict=True))
        batch = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        self.config.data.train_batch_size = len(self.plan[self.global_steps - 1])
        return super().step(metrics, timing_raw)

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **kwargs: Any) -> Any:
        actor, trainer = self.config.actor_rollout_ref.actor, self.config.trainer
        updates = updates_of(self.config.data.train_batch_size, self.config.selfplay.groups_per_update)
        processes = trainer.n_gpus_per_node * trainer.nnodes
        most = len(batch.keys) if actor.use_dynamic_bsz else actor.ppo_micro_batch_size_per_gpu
        rows, self._micro_batch_size = split_rows(len(batch.keys), updates, processes, most)
        actor.ppo_mini_batch_size = rows
        batch = super()._balance_batch(batch, metrics, **kwargs)
        metrics["selfplay/updates"] = len(batch.keys) // rows * actor.ppo_epochs
        own = [tag["own_tokens"] for tag in batch.tags if not tag.get("is_padding", False)]
        metrics["selfplay/own_tokens"] = sum(own)
        if updates > 1:
            # Mixed first: verl takes a batch's updates in order. Sorting by length then stays within each update.
            batch.reorder(mixed(len(batch.keys), processes, [self.config.selfplay.seed, self.global_steps]))
        batch.reorder(by_length([tag["seq_len"] for tag in batch.tags], rows // processes))
        return batch

    def _in_passes(self, batch: Any) -> Any:
        """Returns a batch after setting the fields and the size of a pass; batches that verl returns lack both."""
        batch.extra_info["micro_batch_size_per_gpu"] = self._micro_batch_size
        batch.fields = PASS_FIELDS
        if tokens := self.config.selfplay.get("tokens_per_pass"):
            batch.extra_info["max_token_len_per_gpu"] = tokens
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = self._in_passes(batch)
        compares = not self.config.selfplay.one_update or self._limit_of_gap is not None
        if self.config.algorithm.rollout_correction.bypass_mode and compares:
            self._compare_some(batch, metrics)
        return super()._compute_old_log_prob(batch, metrics)

    @property
    def _limit_of_gap(self) -> float | None:
        """Limit of the gap before the first update, when the trainer still has the sampling weights."""
        limit: float | None = self.config.selfplay.get("max_log_prob_gap") if self.global_steps == 1 else None
        return limit

    def _log_probs(self, batch: Any, *, loss: bool) -> Any:
        """Returns verl's answer to a forward pass over stored rows."""
        temperature = self.config.actor_rollout_ref.rollout.temperature
        batch.extra_info |= {"calculate_entropy": False, "compute_loss": loss, "temperature": temperature}
        return self.actor_rollout_wg.compute_log_prob(batch)

    def _compare_some(self, batch: Any, metrics: dict[str, Any]) -> None:
        """Measure the gap between stored log-probs and the trainer's, on one pass with rows of all lengths.

        A separate pass is needed, because the stored log-probs serve as the old ones. Where the update measures the gap
        of all rows itself, this pass only comes before the first update.
        """
        size = self._micro_batch_size
        if self.config.selfplay.one_update:
            size = min(size, ROWS_BEFORE)
            batch.extra_info["micro_batch_size_per_gpu"] = size
        count = size * self.config.trainer.n_gpus_per_node * self.config.trainer.nnodes
        some = batch.select_keys(batch.keys[:: len(batch.keys) // count][:count])
        self._log_probs(some, loss=False)
        data = tq.kv_batch_get(
            keys=some.keys,
            partition_id=some.partition_id,
            select_fields=["log_probs", "rollout_log_probs", "response_mask"],
        )
        own = response_from_nested(data["log_probs"], data["response_mask"])
        rows = zip(own.unbind(), data["rollout_log_probs"].unbind(), data["response_mask"].unbind(), strict=True)
        batch.extra_info["micro_batch_size_per_gpu"] = self._micro_batch_size
        self._put_gaps(metrics, [(ours - stored)[mask.bool()].abs().numpy() for ours, stored, mask in rows])

    def _put_gaps(self, metrics: dict[str, Any], rows: list[np.ndarray]) -> None:
        """Add the gaps to the metrics.

        Raises:
            UserError: The gaps exceed the limit before the first update.
        """
        gaps = np.concatenate(rows)
        mean, limit = float(gaps.mean()), self._limit_of_gap
        if limit is not None and not mean <= limit:  # also NaN
            raise UserError(
                f"{self.config.data.train_files}: its log-probs differ from those of {self.config.selfplay.model} "
                f"by {mean:.2g} nats a token on average, at most {limit} is rounding; nothing was trained. Engine and "
                "trainer may have loaded different weights, or the tokens, log-probs or temperature of the rows were "
                "changed; play again with this model, or give --any-model to train on the rows of another one"
            )
        metrics |= {"selfplay/log_prob_gap/mean": mean, "selfplay/log_prob_gap/max": float(gaps.max())}

    def _compute_ref_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return super()._compute_ref_log_prob(self._in_passes(batch), metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        metrics["selfplay/rows"] = sum(not tag.get("is_padding", False) for tag in batch.tags)
        dumps, compares = self.config.selfplay.dump_rows, not self.config.algorithm.rollout_correction.bypass_mode
        if dumps or compares:
            rows = self._own_tokens(batch)
            if compares:
                self._put_gaps(metrics, [np.abs(row["old_log_probs"] - row["rollout_log_probs"]) for row in rows])
            if dumps:
                self._dump(batch, rows)
        return batch

    def _own_tokens(self, batch: Any) -> list[Values]:
        """Returns the values of each row at its sampled (unmasked) tokens, 1-d."""
        fields = ["old_log_probs", "rollout_log_probs", "advantages"]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask", *fields]
        )
        # A nested tensor unbinds anew for each row that is asked for.
        masks, *columns = (data[field].unbind() for field in ("response_mask", *fields))
        return [
            {name: values[mask.bool()].float().numpy() for name, values in zip(fields, row, strict=True)}
            for mask, row, tag in zip(masks, zip(*columns, strict=True), batch.tags, strict=True)
            if not tag.get("is_padding", False)
        ]

    def _dump(self, batch: Any, rows: list[Values]) -> None:
        keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        with Path(self.config.selfplay.rows_path).open("a", encoding="utf-8") as file:
            for key, row in zip(keys, rows, strict=True):
                uid, episode, seat, turn = place_in(key)
                place = {
                    "step": self.global_steps,
                    "group": self.train_dataset.groups[self._position_of[uid]].index,
                    "episode": episode,
                    "seat": seat,
                    "turn": turn,
                }
                file.write(json.dumps(place | {name: values.tolist() for name, values in row.items()}) + "\n")

    def row_name(self, key: str) -> str:
        uid, *place = place_in(key)
        return str(self.train_dataset.row_name(self._position_of[uid], *place))

    def on_train_begin(self) -> None:
        self.logger.logger["metrics.jsonl"] = MetricsFile(Path(self.config.selfplay.metrics_path), self)

    def on_step_end(self) -> None:
        """Do nothing, since no server waits for the new weights."""

    def on_sample_end(self) -> None:
        """Do nothing, since no server holds memory."""


def made_with(config: Any) -> dict[str, Any]:
    """Returns the settings with which workers are created, except those that each training sets or overwrites."""
    policy: dict[str, Any] = OmegaConf.to_container(config.actor_rollout_ref)
    actor = policy["actor"]
    # Workers that generate nothing read no other rollout settings.
    policy["rollout"] = {name: value for name, value in policy["rollout"].items() if name.startswith("log_prob_")}
    for section, key in (
        (actor, "ppo_mini_batch_size"),
        (actor, "data_loader_seed"),
        (actor["fsdp_config"], "seed"),
        (actor["optim"], "lr"),
    ):
        del section[key]
    if not policy["model"]["lora_rank"]:  # else a save holds the adapter alone
        del policy["model"]["path"]
    if actor["optim"]["lr_scheduler_type"] == "constant" and not actor["optim"]["lr_warmup_steps_ratio"]:
        del actor["optim"]["total_training_steps"]
    return policy


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
