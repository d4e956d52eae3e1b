"""LoRA adapters in peft's format, and model weights with an adapter merged in. Imports torch only to read tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX, FIRST, SECOND = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""peft's names of a layer's two low-rank factors: the prefix of the layer and the suffix of each factor."""


class Adapter:
    """A LoRA adapter read from a folder: its low-rank factors by the model's own weight names."""

    def __init__(self, folder: Path) -> None:
        from safetensors.torch import load_file

        settings, tensors = json.loads((folder / SETTINGS).read_text("utf-8")), load_file(folder / WEIGHTS)
        self._scale, self._transposed = settings["lora_alpha"] / settings["r"], settings["fan_in_fan_out"]
        layers = [name.removesuffix(FIRST) for name in tensors if name.endswith(FIRST)]
        self._factors = {
            f"{layer.removeprefix(PREFIX)}.weight": (tensors[layer + FIRST], tensors[layer + SECOND])
            for layer in layers
        }
        if 2 * len(layers) != len(tensors):
            raise RuntimeError(f"{folder}: holds more than factors of linear layers")

    @property
    def weights(self) -> set[str]:
        """Names of the weights that the adapter changes."""
        return set(self._factors)

    def name_of(self, stored: str) -> str | None:
        """Returns the adapter's name of a stored weight; None if the adapter does not change this weight.

        Some checkpoints, such as GPT-2's, are stored without the prefix of the base model.
        """
        return next((name for name in self._factors if f".{name}".endswith(f".{stored}")), None)

    def added(self, stored: str, weight: Any) -> Any:
        """Returns a stored weight with the adapter merged in; unchanged if the adapter does not target it."""
        if (name := self.name_of(stored)) is None:
            return weight
        return added(weight, *self._factors[name], self._scale, transposed=self._transposed)


def added(weight: Any, first: Any, second: Any, scale: float, *, transposed: bool) -> Any:
    """Returns the weight of a linear layer with its adapter merged in, in float32.

    Args:
        weight: The layer's weight, shape (out, in), or (in, out) if `transposed`.
        first: The adapter's factor A, shape (rank, in).
        second: The adapter's factor B, shape (out, rank).
        scale: The factor alpha / rank.
        transposed: Whether the layer stores its weight transposed, as GPT-2 does.
    """
    product = scale * (second.float() @ first.float())
    return weight.float() + (product.T if transposed else product)
