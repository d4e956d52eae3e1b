"""Options of the training stage. `TrainOptions` is the `train:` section of the configuration file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from selfplay_pipeline.core.sections import Option, Section, UsedBy

Schedule = Literal["constant", "cosine"]
Logger = Literal["console", "tensorboard", "wandb", "trackio", "mlflow", "swanlab", "clearml"]
WRITES_ROWS = "selfplay.dump_rows=true"
"""Override that asks for the rows that are trained on; for tests and measurements."""


class TrainOptions(Section):
    """Training of the policy. Settings of verl without a key here can be set through `overrides`."""

    method: Annotated[Literal["grpo", "filtered-bc"], UsedBy("train", "iterate", refused_by=["train-online"])] = "grpo"
    """Training method: `grpo` compares the episodes of each group, `filtered-bc` imitates the best of them.

    `filtered-bc` is filtered behaviour cloning: supervised training on the policy's own turns, in the same loop. It
    does not use the options of PPO's loss, of advantages and of the reference policy.
    """
    best_of_group: Annotated[
        int | None, Field(ge=0), UsedBy("train", "imitate", "iterate", refused_by=["train-online"])
    ] = None
    """Number of episodes of each group to imitate, those with the highest reward; 0 imitates all.

    By default `method: filtered-bc` imitates 1, and `imitate` all. With 0, also groups without a signal are imitated.
    """
    epochs: Annotated[int, Field(ge=1), UsedBy("train", "imitate", "iterate")] = 1
    """Number of passes over the data."""
    train_batch_size: Annotated[int, Field(ge=2), UsedBy("train", "iterate")] = 64
    """Number of rows in one batch; with rendered history, all turns of a seat in an episode count as one row.

    GRPO takes whole groups (the rows that are compared with each other), so it rounds this number to the nearest whole
    number of groups, at least one. The steps of an epoch have batches of nearly equal size, none larger.
    """
    mini_batches: Annotated[int, Field(ge=1), UsedBy("train", "iterate")] = 1
    """Number of optimizer steps per batch: the batch is cut into this many mini-batches, each with rows of all its
    groups.

    Rows are assigned to mini-batches at random. A batch that is smaller than `train_batch_size` has fewer mini-batches,
    so that each has about as many rows. No batch has more mini-batches than groups.
    """
    micro_batch_size: Annotated[int, Field(ge=1), UsedBy("train", "imitate", "iterate")] = 8
    """Number of rows in one forward and backward pass on one device.

    If you give it, it replaces the `max_tokens_per_pass` of a built-in configuration.
    """
    max_tokens_per_pass: Annotated[int | None, Field(ge=1)] = None
    """Largest number of tokens in one forward and backward pass on one device, instead of `micro_batch_size` rows.

    The number is raised to the tokens of the longest row if it is smaller. `train-online` always counts tokens: by
    default 16384 on a GPU and 4096 on a CPU, raised to the context length if that is larger.
    """
    learning_rate: Annotated[float, Field(gt=0), UsedBy("train", "iterate", "train-online")] = 1e-6
    """AdamW's learning rate. It is constant within one training; `iterate.decay_iterations` lowers it between
    iterations.
    """
    old_log_probs: Annotated[Literal["step", "games"], UsedBy("train", "iterate")] = "step"
    """Weights in the denominator of PPO's ratio: those at the start of the `step`, or those that played the `games`.

    With `step`, the old log-probs are those of the weights before the batch. With one mini-batch the update's
    own forward pass gives them: the ratio is 1, and only importance weights correct for the difference to the weights
    that played. With `games`, the old log-probs are those stored while playing: clipping limits the distance to the
    weights that played, and replaces the importance weights, which verl then omits.
    """
    kl_coef: Annotated[float, Field(ge=0), UsedBy("train", "iterate", "train-online")] = 0.0
    """Weight of the KL loss to the reference policy, the model that a run begins with; 0 is off."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """Rank of a LoRA adapter, which is trained while the model's own weights are frozen; 0 trains all weights instead.

    All linear layers but the head get an adapter, whose output is added unscaled; in a mixture of experts, the experts
    and their router get none. The checkpoint is the model with the adapter merged in; the adapter alone, in peft's
    format, is next to it in `adapter/`. `iterate` trains one adapter of the initial model through all iterations. The
    reference policy is the model without the adapter.
    """
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass, which saves memory and takes time."""
    offload: Literal["auto", "none", "cpu"] = "auto"
    """Memory that holds weights, gradients and optimizer on a machine with GPUs: the GPUs' (`none`) or the host's
    (`cpu`).

    With `cpu`, layers are fetched when they are computed, and the optimizer runs on the CPU. `auto` is `cpu` if the
    GPUs' memory would be too small.
    """
    keep_zero_signal: Annotated[bool, UsedBy("train", "iterate", refused_by=["train-online"])] = False
    """Train also on groups whose episodes all scored alike, which give GRPO no signal."""
    save_every: Annotated[int, Field(ge=0)] = 0
    """Number of steps between saved states, from which a training can continue; 0 saves only at the end."""
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    """Number of GPUs per machine to train on, by default all visible ones; on a CPU, number of worker processes."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Number of machines to train on; more than one need a running Ray cluster (`ray_address`)."""
    ray_address: str = "local"
    """Ray cluster to train in; `local` is this machine, with Ray only if several processes are needed.

    `auto` joins the cluster of this machine; HOST:PORT joins the cluster with this head address.
    """
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the forward pass and the checkpoint; `auto` is bfloat16 on cuda and float32 on cpu.

    Master weights are always float32.
    """
    loggers: Annotated[list[Logger], Option("--logger")] = ["console", "tensorboard"]
    """Loggers of each step's metrics and of the figures of `iterate`, in addition to metrics.jsonl."""
    overrides: list[str] = []
    """Further settings of verl as Hydra overrides.

    Those after `--` on the command line are added to those of the file; a key that is in both has the former's value.
    """

    @property
    def imitated(self) -> int | None:
        """Number of episodes of each group that are imitated, 0 for all; None if episodes are compared instead."""
        if self.method == "grpo":
            return None
        return 1 if self.best_of_group is None else self.best_of_group

    @property
    def writes_rows(self) -> bool:
        """Whether the rows that are trained on are written to trained_rows.jsonl, with log-probs and advantages."""
        key = key_of(WRITES_ROWS)
        return any(key_of(one) == key and one.partition("=")[2].strip().lower() != "false" for one in self.overrides)

    @property
    def has_reference(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0 and self.imitated is None

    def limit_of_pass(self, row: int) -> int | None:
        """Returns the token limit of one forward and backward pass; None if the number of its rows is limited instead.

        Args:
            row: Tokens of the longest row, which the limit is never below, since verl does not split a row.
        """
        return None if self.max_tokens_per_pass is None else max(self.max_tokens_per_pass, row)

    @property
    def workers(self) -> int:
        """Number of training processes, each with a GPU of its own: torch's world size."""
        return self.nodes * self.gpus_per_node

    @property
    def joins_cluster(self) -> bool:
        """Whether Ray runs already. Its addresses, tokens, folders and resources are then set by the cluster."""
        return self.ray_address != "local"

    @field_validator("ray_address")
    @classmethod
    def _is_an_address(cls, address: str) -> str:
        if address not in ("local", "auto") and not re.fullmatch(r"[\w.-]+:[0-9]{1,5}", address, re.ASCII):
            raise ValueError(f"expected local, auto or HOST:PORT (such as 10.0.0.1:6379), found {address!r}")
        return address

    @field_validator("overrides")
    @classmethod
    def _in_hydras_grammar(cls, overrides: list[str]) -> list[str]:
        for override in overrides:
            _check_override(override)
        return overrides


def key_of(override: str) -> str:
    """Returns the key that a Hydra override sets."""
    return override.partition("=")[0].lstrip("+~")


def _check_override(override: str) -> None:
    """Raises ValueError unless Hydra can read the override; verl itself would notice only after its start."""
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
    except ImportError:
        return  # without verl, nothing is trained here
    from hydra.errors import HydraException

    try:
        key = OverridesParser.create().parse_override(override).key_or_group
    except HydraException as error:
        raise ValueError(f"{override!r} is not a Hydra override ({str(error).splitlines()[0]})") from None
    if not key:
        raise ValueError(f"{override!r} is not a Hydra override (it names no key); write KEY=VALUE")
    if key.startswith("actor_rollout_ref.model.lora") and key != "actor_rollout_ref.model.lora_alpha":
        raise ValueError(f"{override!r}: give train.lora_rank in place of verl's own keys")


class PolicyTraining(TrainOptions):
    """The training options together with the model to train and the output folder."""

    model: str
    """The policy that played: a folder or a hub name."""
    base_model: str | None = None
    """The model that a LoRA adapter is added to; `model` by default."""
    output: Path
    """Folder for checkpoint/ (Hugging Face), trainer_state/ (verl's shards and optimizer), metrics.jsonl and train.log.
    """
    seed: Annotated[int, Field(ge=0)] = 0
    """Seed of the order of the groups, and of the trainer."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device to train on; `auto` is cuda if a GPU is visible, else cpu."""

    @property
    def base(self) -> str:
        """The model whose weights verl loads first, before the weights of a trainer state."""
        return self.base_model or self.model


class TrainConfig(PolicyTraining):
    """One training run on stored episodes."""

    data: Path
    """The train.parquet to train on."""
    initial_trainer_state: Path | None = None
    """trainer_state/ of an earlier iteration, whose float32 weights are continued; with LoRA they are the adapter's.

    Its optimizer and scheduler are continued too.
    """
    reference_model: str | None = None
    """The reference policy of the KL loss; `model` by default."""
    held_out: Path | None = None
    """File of held-out rows; their loss is measured before the first step and after each epoch of imitation."""
    schedule: Schedule = "constant"
    """Learning-rate schedule: constant, or falling to 0 along a cosine."""
    warm_up: float = 0.0
    """Share of the steps over which the learning rate rises linearly to its full value.

    The first of W such steps has 1/W of that value.
    """
    sampled_by: str | None = None
    """The model that must have sampled the rows; `model` by default."""
    any_model: bool = False
    """Whether to train a model that did not sample the rows.

    The rows' log-probs then belong to another model, so that importance weights, and PPO's ratio with `old_log_probs:
    games`, mean nothing.
    """
    plays_meanwhile: bool = False
    """Whether episodes are played during the training, for which it leaves one core."""
    saves_state: bool = True
    """Whether the save at the end holds the trainer's state; else it holds only the weights for the checkpoint."""
    shares_gpu: bool = False
    """Whether a server needs the GPU's memory before and after the training.

    A trainer that keeps running releases that memory after the training.
    """
