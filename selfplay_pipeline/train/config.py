"""Options of the training stage. `TrainOptions` is the `train:` section of the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from selfplay_pipeline.sections import Section


class TrainOptions(Section):
    """What a user may set; everything else is verl's and goes through `overrides`."""

    epochs: Annotated[int, Field(ge=1)] = 1
    """Passes over the data."""
    train_batch_size: Annotated[int, Field(ge=2)] = 64
    """Rows of one batch (one or more optimiser steps), rounded to whole groups of G rows for each trained seat."""
    mini_batches: Annotated[int, Field(ge=1)] = 1
    """Optimiser steps per batch."""
    micro_batch_size: Annotated[int, Field(ge=1)] = 8
    """Rows in one forward and backward pass on one device."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-6
    """Of AdamW, constant."""
    old_log_probs: Literal["step", "games"] = "step"
    """Denominator of PPO's ratio. `step`: log-probs of the weights that the batch begins with, computed anew; with one
    mini-batch the ratio is then 1, and importance weights alone correct for the weights that played. `games`: the
    log-probs stored while playing; clipping then bounds how far the policy moves from the weights that played, and
    replaces the importance weights, which verl does not apply in this mode."""
    clip_low: Annotated[float, Field(gt=0)] = 0.2
    """PPO's ratio is clipped below at 1 - clip_low. Clipping has an effect only with `old_log_probs: games` or with
    several `mini_batches`; otherwise the ratio is always 1."""
    clip_high: Annotated[float, Field(gt=0)] = 0.2
    """PPO's ratio is clipped above at 1 + clip_high, under the same conditions; a value above clip_low is DAPO's
    clip-higher."""
    kl_coef: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL loss to the reference policy; 0 is off."""
    kl_reference: Literal["initial", "previous"] = "initial"
    """The reference: the model that the run began with, or the policy that played."""
    importance_threshold: Annotated[float, Field(ge=0)] = 2.0
    """Token-level truncated importance weights (trainer over engine) are cut here; 0 switches them off. Not applied
    with `old_log_probs: games`."""
    loss_aggregation: Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"] = "token-mean"
    """verl's loss_agg_mode."""
    normalize_by_std: bool = True
    """Divide advantages by the group's standard deviation (GRPO); off is Dr. GRPO's choice."""
    grad_clip: Annotated[float, Field(gt=0)] = 1.0
    """Largest gradient norm."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Of AdamW."""
    gradient_checkpointing: bool = False
    """Save memory, recompute activations."""
    keep_zero_signal: bool = False
    """Train also on groups whose plays all scored alike."""
    keep_optimizer: bool = True
    """Carry the optimizer's state from one iteration to the next."""
    save_every: Annotated[int, Field(ge=0)] = 0
    """Steps between resumable checkpoints; 0 saves only at the end."""
    num_gpus: Annotated[int, Field(ge=1)] = 1
    """GPUs (on a CPU: worker processes)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: cuda where a GPU is visible."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the forward pass and of the checkpoint: bfloat16 on cuda, float32 on cpu. Master weights stay float32."""
    loggers: list[Literal["console", "tensorboard", "wandb"]] = ["console", "tensorboard"]
    """Where verl also logs its step metrics, and `iterate` its figures; metrics.jsonl is always written."""
    dump_rows: bool = False
    """Write what was trained on, row by row with log-probs and advantages, to trained_rows.jsonl (for inspection)."""
    overrides: list[str] = []
    """Further verl keys as Hydra overrides, as after `--` on the command line."""

    @field_validator("overrides")
    @classmethod
    def _in_hydras_grammar(cls, overrides: list[str]) -> list[str]:
        for override in overrides:
            _check_override(override)
        return overrides

    def clip_without_effect(self, *, online: bool = False) -> str | None:
        """A line of warning where another clip range than the usual one is set but cannot act, else None.

        Args:
            online: each step is one update on its own games, whatever the options of offline training say.
        """
        usual = type(self).model_fields
        given = [name for name in ("clip_low", "clip_high") if getattr(self, name) != usual[name].default]
        if not given or (not online and (self.old_log_probs == "games" or self.mini_batches > 1)):
            return None
        names = " and ".join(f"train.{name}" for name in given)
        remedy = "" if online else "; set train.old_log_probs: games, or train.mini_batches above 1"
        return f"{names}: without effect, since each batch is one update and PPO's ratio is then 1{remedy}"


def _check_override(override: str) -> None:
    """Whether Hydra can read it; else verl would say so, once it has started."""
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
    except ImportError:
        return  # without verl nothing is trained here
    from hydra.errors import HydraException

    try:
        key = OverridesParser.create().parse_override(override).key_or_group
    except HydraException as error:
        raise ValueError(f"{override!r} is no Hydra override ({str(error).splitlines()[0]})") from None
    if not key:
        raise ValueError(f"{override!r} is no Hydra override (it names no key); write KEY=VALUE")


class PolicyTraining(TrainOptions):
    """The options, the policy that they train, and where to."""

    model: str
    """The policy that played: a folder or a hub name."""
    output: Path
    """Gets checkpoint/ (Hugging Face), trainer_state/ (verl's shards and optimizer), metrics.jsonl, train.log."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Orders the groups and seeds the trainer."""


class TrainConfig(PolicyTraining):
    """One training run on stored games."""

    data: Path
    """train.parquet."""
    initial_trainer_state: Path | None = None
    """An earlier iteration's trainer_state/, whose weights, optimizer and scheduler are continued."""
    reference_model: str | None = None
    """The reference policy of the KL loss; `model` by default."""
