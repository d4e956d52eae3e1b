"""verl's trainer with a supervised loss; it skips old log-probs and advantages, which imitation does not need."""

from __future__ import annotations

from typing import Any

import transfer_queue as tq

from selfplay_pipeline.convert.rows import WEIGHT
from selfplay_pipeline.train.saves import HELD_OUT_LOSSES
from selfplay_pipeline.train.verl.replay import store
from selfplay_pipeline.train.verl.trainer import OfflineTrainer

PARTITION = "held_out"
BEFORE, AFTER = HELD_OUT_LOSSES


class ImitationTrainer(OfflineTrainer):
    """Trainer on a dataset of single rows, with the loss `loss.py: imitation_loss`."""

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        held_out = self.config.selfplay.held_out
        if held_out and self.global_steps == 1:
            metrics[BEFORE] = self._held_out_loss()
        batch = super().step(metrics, timing_raw)
        if held_out and self.global_steps % self.steps_per_epoch == 0:
            metrics[AFTER] = self._held_out_loss()
        return batch

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._update_actor(batch, metrics)
        metrics["selfplay/loss"] = metrics.pop("actor/loss")
        return batch

    def _compute_metrics(
        self, batch: Any, metrics: dict[str, Any], timing_raw: dict[str, Any], global_steps: int, epoch: int
    ) -> None:
        """Collect the metrics of a step, without verl's own metrics of rewards and advantages."""
        rows = sum(not tag.get("is_padding", False) for tag in batch.tags)
        metrics |= {"training/global_step": global_steps, "training/epoch": epoch, "selfplay/rows": rows}
        metrics |= {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}

    def _held_out_loss(self) -> float:
        """Returns the mean negative log-prob of the imitated tokens of all held-out rows, in nats."""
        positions = {f"{PARTITION}{position}": position for position in range(len(self.val_dataset))}
        batch = store(self.val_dataset, positions, self.global_steps, PARTITION)
        self.config.data.train_batch_size = 1  # one block of rows, as for one update
        batch = self._in_passes(self._balance_batch(batch, {}))
        batch.fields = [field for field in batch.fields if field != WEIGHT]
        if tokens := batch.extra_info.get("max_token_len_per_gpu"):  # the longest row may be a held-out one
            batch.extra_info["max_token_len_per_gpu"] = max(tokens, *(tag["seq_len"] for tag in batch.tags))
        found = self._log_probs(batch, loss=True)
        tq.kv_clear(keys=batch.keys, partition_id=PARTITION)
        return float(found.extra_info["metrics"][0]["loss"])  # each process has the mean over all
