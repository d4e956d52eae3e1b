"""verl's FSDP engine on a CPU. verl imports this where it builds a model (`model.external_lib`)."""

from __future__ import annotations

import torch
from torch.distributed.fsdp import CPUOffloadPolicy
from verl.utils import torch_functional
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl

TOKENS_AT_A_TIME = 1024


def _unpinned(pin_memory: bool = False) -> CPUOffloadPolicy:
    """Pinned memory, which verl asks for when it offloads the reference model, needs an accelerator's driver."""
    return CPUOffloadPolicy(pin_memory=False)


def _log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """verl's `logprobs_from_logits_v2`, some tokens at a time instead of one: on a CPU the loop took a tenth of a step.

    Args:
        logits: shape (tokens, vocabulary), float32.
        labels: shape (tokens,).

    Returns:
        Log-probs of the labels, shape (tokens,).
    """
    parts = zip(logits.split(TOKENS_AT_A_TIME), labels.split(TOKENS_AT_A_TIME), strict=True)
    return torch.cat([part.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - part.logsumexp(-1) for part, chosen in parts])


if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
    EngineRegistry.register("language_model", backend="fsdp2", device="cpu")(transformer_impl.FSDPEngineWithLMHead)
    transformer_impl.CPUOffloadPolicy = _unpinned
    torch_functional.logprobs_from_logits_v2 = _log_probs
