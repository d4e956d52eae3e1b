"""A LoRA adapter in peft's format, and the weights of a model with it added. torch comes with what is passed in."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.checkpoints import stored_weights
from selfplay_pipeline.core.errors import UserError

WEIGHTS, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
PREFIX, FIRST, SECOND = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""How peft names the factors of a layer's part."""


class Adapter:
    """The factors of what is added to some weights, by the names that the model has for these weights."""

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
        """Names of the weights that it changes."""
        return set(self._factors)

    def added(self, name: str, weight: Any) -> Any:
        """The weight of this name with the adapter's part."""
        if name not in self._factors:
            return weight
        return added(weight, *self._factors[name], self._scale, transposed=self._transposed)


def added(weight: Any, first: Any, second: Any, scale: float, *, transposed: bool) -> Any:
    """What a linear layer and its adapter compute together, as one weight in float32.

    Args:
        weight: shape (out, in), or (in, out) where `transposed`.
        first: the adapter's A, shape (rank, in).
        second: its B, shape (out, rank).
        scale: alpha / rank.
        transposed: whether the layer keeps its weight as GPT-2's do.
    """
    product = scale * (second.float() @ first.float())
    return weight.float() + (product.T if transposed else product)


def check_targets(model: str, targets: Sequence[str]) -> None:
    """Whether a model has the layers that are to get an adapter. Those of a hub name are not looked at.

    Raises:
        UserError: it has not.
    """
    if not targets or not Path(model).is_dir():
        return
    found = {
        name.split(".")[-2]
        for name, stored in stored_weights(Path(model)).items()
        if re.search(r"\.\d+\..*\.weight$", name) and len(stored.shape) == 2
    }
    missing = sorted(set(targets) - found)
    if missing:
        known = ", ".join(sorted(found))
        raise UserError(f"train.lora_targets: {model} has no layers {missing[0]!r}; its layers are {known}")
