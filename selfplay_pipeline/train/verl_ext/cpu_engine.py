"""verl's FSDP engine on a CPU. verl imports this where it builds a model (`model.external_lib`)."""

from __future__ import annotations

from torch.distributed.fsdp import CPUOffloadPolicy
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import transformer_impl


def _unpinned(pin_memory: bool = False) -> CPUOffloadPolicy:
    """Pinned memory, which verl asks for when it offloads the reference model, needs an accelerator's driver."""
    return CPUOffloadPolicy(pin_memory=False)


if "cpu" not in EngineRegistry._engines["language_model"]["fsdp2"]:
    EngineRegistry.register("language_model", backend="fsdp2", device="cpu")(transformer_impl.FSDPEngineWithLMHead)
    transformer_impl.CPUOffloadPolicy = _unpinned
