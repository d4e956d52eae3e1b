"""Changes verl's FSDP engine for LoRA adapters, and writes their file. Importing this module is enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import offload_fsdp_model_to_cpu
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from selfplay_pipeline.train.adapter import PREFIX, WEIGHTS, added


def save_adapter(model: Any, folder: Path) -> None:
    """Write the adapter in peft's format. All ranks must call this function; rank 0 writes.

    Args:
        model: peft's model, sharded or not.
        folder: Folder to create.
    """
    state = get_peft_model_state_dict(model, save_embedding_layers=False)
    tensors = {name: _whole(tensor).cpu().contiguous() for name, tensor in state.items()}
    if torch.distributed.get_rank() == 0:
        folder.mkdir(exist_ok=True)
        model.peft_config["default"].save_pretrained(folder)
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def merged_weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the weights of a model with its adapter merged in, by the model's own names; the model is not changed.

    All ranks must iterate to the end.
    """
    layers: dict[str, Any] = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    state = model.state_dict()
    for name in state:
        if ".lora_" in name:
            continue
        weight = _whole(state[name])
        layer = layers.get(place := name.removesuffix(".base_layer.weight"))
        if layer is not None:
            first, second = (_whole(state[f"{place}.{part}.default.weight"]) for part in ("lora_A", "lora_B"))
            weight = added(weight, first, second, layer.scaling["default"], transposed=layer.fan_in_fan_out)
        yield name.removeprefix(PREFIX).replace(".base_layer.", "."), weight


def _whole(tensor: Any) -> torch.Tensor:
    """Returns the full tensor on the device; `tensor` may be sharded over the ranks and be in host memory."""
    tensor = tensor.detach().to(get_device_id())
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _pushed(self: FSDPEngine) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the merged weights for servers.

    verl's own function merges the adapter into the model itself meanwhile, and rounds all weights to bfloat16.
    """
    try:
        yield from merged_weights(self.module)
    finally:
        if self.is_param_offload_enabled:
            offload_fsdp_model_to_cpu(self.module)


def _seeded(self: FSDPEngine, module: Any) -> Any:
    """Build the adapter with seeded random numbers, which verl does not seed."""
    torch.manual_seed(self.engine_config.seed)
    return _build(self, module)


_build = FSDPEngine._build_lora_module
FSDPEngine._build_lora_module = _seeded
FSDPEngine._merged_lora_per_tensor_param = _pushed
