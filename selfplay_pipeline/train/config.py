"""Options of the training stage. `TrainOptions` is the `train:` section of the configuration file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from selfplay_pipeline.core.sections import FREE, Option, Section, UsedBy

SUPERVISED = {"imitate": "a supervised loss"}
"""The loss of `imitate`, in place of all that GRPO has options for."""


class TrainOptions(Section):
    """How the policy is trained. Everything that has no key here is verl's, and goes through `overrides`."""

    method: Annotated[Literal["grpo", "filtered-bc"], UsedBy("train", "iterate", instead=SUPERVISED)] = "grpo"
    """How the policy learns: from a comparison of each group's episodes, or by imitating the best of them.

    `filtered-bc` is filtered behaviour cloning: supervised training on own turns, on the same loop. It has no use for
    the options of PPO's loss, of advantages and of the reference policy.
    """
    best_of_group: Annotated[
        int, Field(ge=0), UsedBy("train", "iterate", instead={"imitate": "imitate.best_of_group"})
    ] = 1
    """Episodes of each group that `method: filtered-bc` imitates, those with the highest reward.

    0 is all of all groups, those without a signal too.
    """
    epochs: Annotated[
        int,
        Field(ge=1),
        UsedBy("train", "iterate", instead={"imitate": "imitate.epochs", "train-online": "online.steps"}),
    ] = 1
    """Passes over the data."""
    train_batch_size: Annotated[
        int,
        Field(ge=2),
        UsedBy(
            "train",
            "iterate",
            instead={"imitate": "imitate.train_batch_size", "train-online": "online.states_per_step"},
        ),
    ] = 64
    """Rows of one batch, rounded to whole groups of G rows for each trained seat."""
    mini_batches: Annotated[
        int,
        Field(ge=1),
        UsedBy("train", "iterate", instead={"imitate": "one update a batch", "train-online": "one update a step"}),
    ] = 1
    """Optimizer steps that one batch is cut into; each has rows of all its groups, drawn at random.

    A batch that the data do not fill has fewer, so that each has about as many rows.
    """
    micro_batch_size: Annotated[
        int,
        Field(ge=1),
        UsedBy("train", "imitate", "iterate", instead={"train-online": "online.tokens_per_pass"}),
        FREE,
    ] = 8
    """Rows in one forward and backward pass on one device."""
    max_tokens_per_pass: Annotated[int | None, Field(ge=1), FREE] = None
    """Tokens in one such pass, instead of `micro_batch_size` rows; never fewer than the longest row has."""
    learning_rate: Annotated[
        float, Field(gt=0), UsedBy("train", "iterate", "train-online", instead={"imitate": "imitate.learning_rate"})
    ] = 1e-6
    """AdamW's learning rate, which stays constant."""
    old_log_probs: Annotated[
        Literal["step", "games"],
        UsedBy("train", "iterate", instead=SUPERVISED | {"train-online": "one update a step"}),
    ] = "step"
    """Log-probs in the denominator of PPO's ratio: those at the beginning of a `step`, or those of the `games`.

    With `step` they are those of the weights that the batch begins with; with one mini-batch the update's own pass
    gives them, the ratio is 1, and importance weights alone correct for the weights that played. With `games`, the
    log-probs stored while playing, clipping bounds how far the policy moves from the weights that played, and replaces
    the importance weights, which verl does not apply then.
    """
    kl_coef: Annotated[float, Field(ge=0), UsedBy("train", "iterate", "train-online", instead=SUPERVISED)] = 0.0
    """Weight of the KL loss to the reference policy, the model that a run begins with; 0 is off."""
    lora_rank: Annotated[int, Field(ge=0)] = 0
    """Rank of a LoRA adapter, which is trained while the model's own weights stay; 0 trains all weights instead.

    The checkpoint is the model with the adapter added; the adapter alone, in peft's format, lies beside it in
    `adapter/`. `iterate` trains one adapter to the initial model in all iterations. The reference policy is the model
    without the adapter.
    """
    lora_alpha: Annotated[int, Field(ge=1)] = 16
    """What the adapter adds is multiplied by lora_alpha / lora_rank."""
    lora_targets: list[str] = []
    """Names of the linear layers that get an adapter, such as q_proj; where none is named, all but the head get one."""
    gradient_checkpointing: bool = False
    """Compute activations twice, which saves memory and takes time."""
    offload: Annotated[Literal["auto", "none", "cpu"], FREE] = "auto"
    """Where weights, gradients and optimizer are on a machine with GPUs: with `cpu` in its own memory.

    Layers are then fetched when they are computed, and the optimizer works on the CPU. `auto` is `cpu` where the GPUs'
    memory would not hold them.
    """
    any_model: Annotated[
        bool,
        UsedBy(
            "train",
            instead={
                "imitate": "any model",
                "iterate": "the model that played",
                "train-online": "the model that plays",
            },
        ),
        FREE,
    ] = False
    """Train a model that did not sample the rows.

    The log-probs of the rows then belong to another model, so that importance weights, and PPO's ratio with
    `old_log_probs: games`, mean nothing. Without this, `train` refuses such a model.
    """
    keep_zero_signal: Annotated[bool, UsedBy("train", "iterate", instead={"imitate": "imitate.best_of_group"})] = False
    """Train also on groups whose episodes all scored alike, which give GRPO no signal."""
    save_every: Annotated[int, Field(ge=0), FREE] = 0
    """Steps between saved states, from which a training can continue; 0 saves only at the end."""
    gpus_per_node: Annotated[int, Field(ge=1)] = 1
    """GPUs of a machine to train on; on a CPU, worker processes."""
    nodes: Annotated[int, Field(ge=1)] = 1
    """Machines to train on; more than one need a running Ray cluster (`ray_address`)."""
    ray_address: Annotated[str, FREE] = "local"
    """Where verl's processes run: `local` starts Ray here for each training, others join a cluster that runs.

    `auto` is the cluster that this machine belongs to, HOST:PORT the one whose head has this address.
    """
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model is trained; `auto` is cuda where a GPU is visible, else cpu."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Numbers of the forward pass and the checkpoint; `auto` is bfloat16 on cuda and float32 on cpu.

    Master weights are always float32.
    """
    loggers: Annotated[list[Literal["console", "tensorboard", "wandb"]], Option("--logger"), FREE] = [
        "console",
        "tensorboard",
    ]
    """Where the metrics of each step and the figures of `iterate` are logged, beside metrics.jsonl."""
    dump_rows: Annotated[bool, UsedBy("train", "iterate"), FREE] = False
    """Write what was trained on, row by row with log-probs and advantages, to trained_rows.jsonl.

    Rows that are imitated have no advantages, so that it is refused for them.
    """
    overrides: list[str] = []
    """Further keys of verl's as Hydra overrides, such as those after `--` on the command line."""

    @property
    def imitated(self) -> int | None:
        """Episodes of each group that are imitated, 0 for all; None where they are compared instead."""
        return self.best_of_group if self.method == "filtered-bc" else None

    @property
    def has_reference(self) -> bool:
        """Whether the loss has a KL term."""
        return self.kl_coef > 0 and self.imitated is None

    @property
    def workers(self) -> int:
        """Training processes, each with a GPU of its own: torch's world size."""
        return self.nodes * self.gpus_per_node

    @property
    def joins_cluster(self) -> bool:
        """Whether Ray runs already, so that its addresses, tokens, folders and resources are not ours to choose."""
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
    if key.startswith("actor_rollout_ref.model.lora"):
        raise ValueError(f"{override!r}: give train.lora_rank, lora_alpha and lora_targets in place of verl's own keys")


class PolicyTraining(TrainOptions):
    """The options, the policy that they train, and where to."""

    model: str
    """The policy that played: a folder or a hub name."""
    base_model: str | None = None
    """The model that a LoRA adapter is added to; `model` by default."""
    output: Annotated[Path, FREE]
    """Gets checkpoint/ (Hugging Face), trainer_state/ (verl's shards and optimizer), metrics.jsonl, train.log."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Orders the groups and seeds the trainer."""

    @property
    def base(self) -> str:
        """The model whose weights verl loads, before those of a trainer state."""
        return self.base_model or self.model


class TrainConfig(PolicyTraining):
    """One training run on stored episodes."""

    data: Path
    """The train.parquet to train on."""
    initial_trainer_state: Path | None = None
    """An earlier iteration's trainer_state/, whose float32 weights are continued; with LoRA they are the adapter's.

    Its optimizer and scheduler are continued too.
    """
    reference_model: str | None = None
    """The reference policy of the KL loss; `model` by default."""
    held_out: Path | None = None
    """Rows that are not trained on, whose loss is measured before the first step and after each epoch of imitation."""
    schedule: Literal["constant", "cosine"] = "constant"
    """Whether the learning rate stays, or goes down to 0 along a cosine."""
    warm_up: float = 0.0
    """Share of the steps in which the learning rate rises by equal parts, to one such part in the first step."""
    shares_gpu: Annotated[bool, FREE] = False
    """Whether a server needs the GPU's memory before and after the training; a trainer that stays then leaves it."""
