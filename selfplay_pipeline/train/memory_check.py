"""Checks that a training fits this machine's memory, and resolves `train.offload: auto`."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import psutil

from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import Device, gpu_memory
from selfplay_pipeline.core.model_sizes import ModelSizes, sizes_of
from selfplay_pipeline.train.memory import Room, Setup, lacks, remedy, surely_lacks
from selfplay_pipeline.train.verl_overrides import resolve_dtype


def tokens_of_pass(options: TrainOptions, row: int) -> int:
    """Returns the tokens of one forward and backward pass with rows of `row` tokens."""
    return options.limit_of_pass(row) or options.micro_batch_size * row


def setup_of(options: TrainOptions, device: Device, *, tokens: int | None = None, shares_gpu: bool = False) -> Setup:
    """Returns the settings that decide how much memory a training takes.

    Args:
        options: The options of the training.
        device: The device to train on.
        tokens: Tokens of one pass, if known.
        shares_gpu: Whether a server keeps a part of the GPUs.
    """
    return Setup(
        processes=options.workers,
        processes_per_node=options.gpus_per_node,
        tokens=tokens or options.max_tokens_per_pass or options.micro_batch_size,
        cuda=device == "cuda",
        half=resolve_dtype(options, device) == "bfloat16",
        checkpointing=options.gradient_checkpointing,
        offload=device == "cuda" and options.offload == "cpu",
        lora_rank=options.lora_rank,
        reference=options.has_reference,
        shares_gpu=shares_gpu and device == "cuda",
    )


def room_here(device: Device) -> Room:
    """Returns the memory of this machine."""
    host = psutil.virtual_memory().total + psutil.swap_memory().total
    return Room(gpu=gpu_memory() if device == "cuda" else None, host=host)


def resolve_offload(options: TrainOptions, sizes: ModelSizes, setup: Setup, room: Room) -> Literal["none", "cpu"]:
    """Returns the configured place of weights, gradients and optimizer; resolves `auto` by the GPUs' memory."""
    if options.offload != "auto":
        return options.offload
    return "cpu" if setup.cuda and lacks(sizes, replace(setup, offload=False), replace(room, host=None)) else "none"


def offload_here(
    options: TrainOptions,
    device: Device,
    model: str,
    context: int | None,
    *,
    tokens: int | None = None,
    shares_gpu: bool = False,
) -> Literal["none", "cpu"]:
    """Returns `train.offload` for this machine; resolves `auto` by the GPUs' memory.

    As in `selfplay doctor`, rows may be as long as the context. A model whose weights cannot be counted is assumed to
    fit.

    Args:
        options: The options of the training.
        device: The device to train on.
        model: Folder or hub name of the model.
        context: The configured context length; None for the model's own.
        tokens: Tokens of one pass; by default, those of an offline training.
        shares_gpu: Whether a server keeps a part of the GPUs.
    """
    if options.offload != "auto" or device == "cpu":
        return "cpu" if options.offload == "cpu" else "none"
    try:
        sizes = sizes_of(model)
    except UserError:
        return "none"
    tokens = tokens or tokens_of_pass(options, min(sizes.context, context or sizes.context))
    setup = setup_of(options, device, tokens=tokens, shares_gpu=shares_gpu)
    return resolve_offload(options, sizes, setup, room_here(device))


def check_fits(
    options: TrainOptions,
    device: Device,
    model: str,
    *,
    context: int | None = None,
    tokens: int | None = None,
    longest: int = 1,
    shares_gpu: bool = False,
) -> None:
    """Raises UserError if this machine's memory certainly cannot hold the training; doubtful cases pass.

    Args:
        options: The options of the training.
        device: The device to train on.
        model: Folder or hub name of the model.
        context: The configured context length, which decides about `train.offload: auto`; None for the model's own.
        tokens: Tokens of one pass, if known.
        longest: Tokens of the longest row, if known.
        shares_gpu: Whether a server keeps a part of the GPUs.

    Raises:
        UserError: The memory is too small; the message names the settings that would help.
    """
    if any("actor_rollout_ref." in key for key in options.overrides):
        return  # verl's own keys may decide about memory
    try:
        sizes = sizes_of(model)
    except UserError:
        return
    place = offload_here(options, device, model, context, tokens=tokens, shares_gpu=shares_gpu)
    own = options.model_copy(update={"offload": place})
    setup, room = setup_of(own, device, tokens=tokens, shares_gpu=shares_gpu), room_here(device)
    missing = surely_lacks(sizes, setup, room)
    if missing:
        raise UserError(f"{model}: training it needs at least {missing}; {remedy(sizes, setup, room, longest)}")
