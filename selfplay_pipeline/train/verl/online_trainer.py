"""verl's trainers on episodes that the policy plays during training."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.train.groups import split_rows
from selfplay_pipeline.train.saves import METRICS
from selfplay_pipeline.train.verl.guard import Guarded
from selfplay_pipeline.train.verl.online_sampler import rows_of

AHEAD = 1
"""Number of batches that an asynchronous trainer plays ahead of the current one."""
UNFINISHED = "unfinished.json"
"""Name of a save's file with the prompts taken from the data, and those not yet trained on."""


class Online(Guarded):
    """Mixin of the trainers here: they stop at the first fault, store no pickles in the trainer state, and train on few
    padding rows.
    """

    _state_of: dict[str, int]
    """Number of the state of each prompt, by its uid."""
    _largest_update: int
    """`ppo_mini_batch_size` as configured."""
    _metrics: dict[str, Any]
    """Metrics of the current step, as far as they are known."""

    def _build_replay_buffer(self) -> Any:
        self._largest_update = self.config.actor_rollout_ref.actor.ppo_mini_batch_size
        # In verl's asynchronous modes a save contains the whole TransferQueue as a pickle, which can run code.
        self.trainer_mode = "sync"
        return super()._build_replay_buffer()

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        self._metrics = metrics
        return super().step(metrics, timing_raw)

    def _saved(self) -> dict[str, Any]:
        """Returns the step's metrics too: verl logs them only after a validation, during which it may be stopped."""
        numbers = {name: value for name, value in self._metrics.items() if isinstance(value, int | float)}
        return super()._saved() | {METRICS: {name: value for name, value in numbers.items() if math.isfinite(value)}}

    def _balance_batch(self, batch: Any, metrics: dict[str, Any], **kwargs: Any) -> Any:
        """Set the size of this step's updates, then fill up and balance the batch as verl does.

        verl fills every update up to `ppo_mini_batch_size`, with rows of 128 tokens that have no loss. Groups without
        signal are left out, so that nine tenths of the tokens could be padding. Here the configured size is the largest
        one: the rows are split into as few equal updates as it allows. verl multiplies the size by the episodes of a
        state, so an update is a multiple of these and of the processes. Passes of a fixed number of rows need verl's
        size.

        Loss and gradient are the same as with verl's padding, since `RealRowsWorker` counts the real rows. Only
        `seq-mean-token-sum-norm` without a `loss_scale_factor` depends on the passes in verl too: it divides by the
        longest response of each.
        """
        policy, trainer = self.config.actor_rollout_ref, self.config.trainer
        if policy.actor.use_dynamic_bsz:
            episodes, rows = policy.rollout.n, len(batch.keys)
            multiple = math.lcm(episodes, trainer.n_gpus_per_node * trainer.nnodes)
            updates = math.ceil(rows / (self._largest_update * episodes))
            if self.config.selfplay.history == "rendered":  # the configured size counts seats, but their turns are rows
                updates = math.ceil(self.config.selfplay.rows_per_step / self._largest_update)
            size, _ = split_rows(rows, updates, multiple, rows)
            policy.actor.ppo_mini_batch_size = size // episodes
        return super()._balance_batch(batch, metrics, **kwargs)

    def row_name(self, key: str) -> str:
        (row,), output = rows_of([key], [0.0]), key.rsplit("_", 1)[1]
        return f"state {self._state_of.get(row.state)}, episode {row.episode}, " + (
            f"seat {row.seat}" if row.by_seat else f"output {output}"
        )


@register_trainer("online")
class OnlineTrainer(Online, PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer."""

    def _load_checkpoint(self) -> None:
        """Load the checkpoint, then skip one batch per finished step; verl would load this position from a pickle."""
        super()._load_checkpoint()
        for _ in range(self.global_steps):
            self._fetch_one_gen_batch()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        batch = super()._next_train_batch(num_prompts)
        self._state_of = dict(zip(list(batch["uid"]), list(batch["index"]), strict=True))
        return batch


class PlayingAhead(PPOTrainerColocateAsync):  # type: ignore[misc]
    """verl's trainer that plays a batch ahead; it also saves the prompts not yet trained on.

    A prompt is one state, and prompts are numbered in the order in which they are taken from the data. A training that
    continues plays the unfinished prompts of its save again, with the save's weights. At the end no episode is left.
    """

    _taken: int
    """Number of prompts taken from the data."""
    _again: deque[tuple[int, Any]]
    """Unfinished prompts of the save that was loaded."""
    _number_of: dict[str, int]
    """Number of each prompt, by its uid."""

    def _load_checkpoint(self) -> None:
        self._taken, self._again, self._number_of = 0, deque(), {}
        self._state_of: dict[str, int] = {}
        super()._load_checkpoint()
        if not self.global_steps:
            return
        found = parse_json((self._save_folder() / UNFINISHED).read_bytes())
        for number in range(found["taken"]):
            prompt = super()._fetch_one_gen_batch()
            if number in found["unfinished"]:
                self._again.append((number, prompt))
        self._taken = found["taken"]

    def _save_checkpoint(self) -> None:
        super()._save_checkpoint()
        unfinished = sorted(self._number_of[uid] for uid in self._unfinished())
        write_json(self._save_folder() / UNFINISHED, {"taken": self._taken, "unfinished": unfinished})

    def _save_folder(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def on_train_begin(self) -> None:
        """Do nothing, because `prepare_step` adds the prompts that are played ahead too."""

    def prepare_step(self) -> dict[str, Any]:
        """Start new prompts until those under way suffice for this step and the next, if there is one."""
        batches = min(1 + AHEAD, self.total_training_steps - self.global_steps + 1)
        missing = batches * self.config.data.train_batch_size - len(self._unfinished())
        if missing > 0:
            self._add_prompts_to_generate(missing)
        return {}

    def _unfinished(self) -> list[str]:
        """Returns the uids of the prompts that are played or wait to be trained on."""
        prompts = (tq.kv_list("train") or {}).get("train", {})
        return [uid for uid, tag in prompts.items() if tag.get("is_prompt", False)]

    def _fetch_one_gen_batch(self) -> Any:
        if self._again:
            number, prompt = self._again.popleft()
        else:
            number, prompt = self._taken, super()._fetch_one_gen_batch()
            self._taken += 1
        (uid,), (state,) = prompt["uid"], prompt["index"]
        self._number_of[uid], self._state_of[uid] = number, state
        return prompt


@register_trainer("online_colocate_async")
class ColocatedTrainer(Online, PlayingAhead):
    """verl's trainer that shares its devices with the servers, and breaks episodes off while it trains."""
