"""verl's synchronous trainer on episodes that the policy plays during training."""

from __future__ import annotations

from typing import Any

from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from selfplay_pipeline.train.verl.guard import Guarded
from selfplay_pipeline.train.verl.online_sampler import rows_of


@register_trainer("online")
class OnlineTrainer(Guarded, PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer, which stops at the first fault and stores no pickled position in the data."""

    def _build_replay_buffer(self) -> Any:
        self.trainer_mode = "sync"
        return super()._build_replay_buffer()

    def _load_checkpoint(self) -> None:
        """Load the checkpoint, then skip one batch per finished step; verl would load this position from a pickle."""
        super()._load_checkpoint()
        for _ in range(self.global_steps):
            self._fetch_one_gen_batch()

    def _next_train_batch(self, num_prompts: int | None = None) -> Any:
        batch = super()._next_train_batch(num_prompts)
        self._state_of = dict(zip(list(batch["uid"]), list(batch["index"]), strict=True))
        return batch

    def row_name(self, key: str) -> str:
        (row,), output = rows_of([key], [0.0]), key.rsplit("_", 1)[1]
        return f"state {self._state_of.get(row.state)}, episode {row.episode}, " + (
            f"seat {row.seat}" if row.by_seat else f"output {output}"
        )
