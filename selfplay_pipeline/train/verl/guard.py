"""Stops a training at the first fault: a number that is not finite, a failed save, a state that cannot be loaded."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transfer_queue as tq

from selfplay_pipeline.core.checkpoints import number_of_weights
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.train.saves import PICKLED_POSITION, WHOLE, is_whole, saves
from selfplay_pipeline.train.stopped import TrainingStopped, cause_of, no_space, one_line

if TYPE_CHECKING:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer as Trainer
else:
    Trainer = object

FIELDS = {
    "rollout_log_probs": "the engine's log-probs",
    "rm_scores": "the reward",
    "old_log_probs": "the trainer's log-probs",
    "ref_log_prob": "the reference model's log-probs",
    "rollout_is_weights": "the importance weights",
    "advantages": "the advantages",
}
"""Checked fields of a row, with their names in messages; a cause comes before its consequences."""
BYTES_A_WEIGHT = 16
"""Number of bytes per weight in a save, in float32: the shard, AdamW's two moments, and a copy as safetensors."""
BYTES_A_COPY = 4
"""Number of bytes per weight in a save without the trainer's state."""
FULL = 2**20
"""Free bytes below which a disk counts as full, because torch does not say why it could not write."""


class Guarded(Trainer):  # type: ignore[misc]
    """Mixin for verl's trainers that stops with a one-line message before a bad step is saved or logged."""

    _with_state = True
    """Whether the current save holds the trainer's state."""

    def row_name(self, key: str) -> str:
        """Returns the origin of the row with this key, for messages."""
        raise NotImplementedError

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        temperature = float(self.config.actor_rollout_ref.rollout.temperature)
        if not (math.isfinite(temperature) and temperature > 0):
            raise TrainingStopped(f"step {self.global_steps}: the sampling temperature is {temperature}")
        return super()._compute_old_log_prob(batch, metrics)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        self._check_rows(batch)
        return batch

    def _check_rows(self, batch: Any) -> None:
        """Raises TrainingStopped if a row holds a number that is not finite."""
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
        rows = [row for row, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        for field in FIELDS:
            values = data[field].unbind() if field in data.keys() else ()  # noqa: SIM118
            bad = [row for row in rows if values and not torch.isfinite(values[row]).all()]
            if bad:
                first = values[bad[0]]
                number = first[~torch.isfinite(first)].flatten()[0].item()
                raise TrainingStopped(
                    f"step {self.global_steps}: {FIELDS[field]} of {self.row_name(batch.keys[bad[0]])}: {number} is "
                    f"not finite ({len(bad)} of {len(rows)} rows of the step are like this); {self._kept()}"
                )

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Update the policy; raises TrainingStopped if the update is not finite, where verl would skip it and go on."""
        batch = super()._update_actor(batch, metrics)
        bad = [f"{name} {value}" for name, value in sorted(metrics.items()) if _breaks(name, value)]
        if bad:
            raise TrainingStopped(
                f"step {self.global_steps}: the update is not finite ({', '.join(bad)}); {self._kept()}; a lower "
                "learning rate may help"
            )
        return batch

    def _save_checkpoint(self) -> None:
        """Save completely or not at all.

        The pickled position of the dataloader is deleted, because it follows from the step.
        """
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        try:
            super()._save_checkpoint()
            write_json(folder / WHOLE, self._saved())
            (folder / PICKLED_POSITION).unlink(missing_ok=True)
        except Exception as error:
            if isinstance(cause_of(error), TrainingStopped):  # the weights are not finite
                reason = f"{one_line(error)}; {self._kept()}"
            else:
                reason = f"{folder}: the save of step {self.global_steps} failed: {self._why(error, folder)}"
            shutil.rmtree(folder, ignore_errors=True)
            raise TrainingStopped(reason) from error

    def _saved(self) -> dict[str, Any]:
        """Returns the content of the file that ends a complete save."""
        return {"step": self.global_steps}

    def _why(self, error: Exception, folder: Path) -> str:
        """Returns the reason why a save failed."""
        free = shutil.disk_usage(folder.parent).free
        if not no_space(error) and free > FULL:
            return f"{one_line(error)}; {self._kept()}"
        written = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        model = self.config.actor_rollout_ref.model
        weights = None if model.lora_rank else number_of_weights(Path(model.path))
        each = BYTES_A_WEIGHT if self._with_state else BYTES_A_COPY
        needed = f"about {each * weights / 1e6:.0f} MB are needed, " if weights else ""
        return (
            f"No space left on device ({needed}{(free + written) / 1e6:.0f} MB were free); make room and give the "
            f"same command again; {self._kept()}"
        )

    def _kept(self) -> str:
        folders = saves(Path(self.config.trainer.default_local_dir))
        steps = [step for step, folder in folders.items() if is_whole(folder)]
        return f"the save of step {max(steps)} is kept" if steps else "nothing was saved"

    def _load_checkpoint(self) -> None:
        with loading(self.config.trainer.default_local_dir):
            super()._load_checkpoint()


@contextmanager
def loading(folder: str | Path) -> Iterator[None]:
    """Turn an error during the loading of a trainer state into a one-line message."""
    try:
        yield
    except Exception as error:
        raise TrainingStopped(f"{folder}: this trainer state cannot be loaded: {one_line(error)}") from error


def _breaks(name: str, value: Any) -> bool:
    """Whether a metric shows that its update failed."""
    try:
        return name.startswith("actor/") and not math.isfinite(value)
    except TypeError:
        return False
