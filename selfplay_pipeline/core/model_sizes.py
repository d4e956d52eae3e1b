"""Sizes of a model, from its configuration and architecture, without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.hub import config_of

KNOWN = {"Qwen/Qwen2.5-7B-Instruct": Path(__file__).with_name("known_models") / "Qwen2.5-7B-Instruct.json"}
"""Files with the config.json of models that can be examined without access to a hub.

The sizes are those of the published config.json (Apache-2.0, https://huggingface.co/Qwen/Qwen2.5-7B-Instruct).
"""


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a decoder, counted in numbers (each takes 2 or 4 bytes)."""

    parameters: int
    tensors: tuple[int, ...]
    """Number of parameters of each tensor; tied tensors count once."""
    layer: int
    """Number of parameters of the largest layer."""
    embedding: int
    """Number of parameters of the token embedding."""
    head: int
    """Number of parameters of the output head; 0 if it is tied to the embedding."""
    layers: int
    hidden: int
    intermediate: int
    """Width of the feed-forward part for one token."""
    keys: int
    """Size of a token's keys in one layer; the values have the same size."""
    vocabulary: int
    context: int
    linear: tuple[int, ...]
    """Number of inputs and outputs of each linear layer but the head."""

    @property
    def adapter(self) -> int:
        """Number of parameters of a LoRA adapter of rank 1: inputs + outputs of each linear layer."""
        return sum(self.linear)


@lru_cache
def sizes_of(model: str) -> ModelSizes:
    """Returns the sizes of a model, given a folder with a config.json (no weights are needed) or a hub name.

    Raises:
        UserError: The configuration is missing, or no model can be built from it.
    """
    import torch
    from transformers import AutoModelForCausalLM

    config = config_of(str(KNOWN.get(model, model)))
    try:
        with torch.device("meta"):
            built = AutoModelForCausalLM.from_config(config)
        return _counted(built, config.get_text_config())
    except Exception as error:  # sizes that do not fit each other; any layer may raise
        raise UserError(
            f"model {model}: its size cannot be computed ({first_line(error)}); give a text model"
        ) from None


def _counted(model: Any, config: Any) -> ModelSizes:
    from torch.nn import Linear

    tensors = [tensor.numel() for tensor in model.parameters()]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    kinds = set(model._no_split_modules or ())  # what FSDP gathers at a time, too
    layers = [part for part in model.modules() if type(part).__name__ in kinds]
    linear = [part for part in model.modules() if isinstance(part, Linear)]
    heads = config.num_attention_heads
    experts = getattr(config, "num_experts_per_tok", None)
    width = experts * config.moe_intermediate_size if experts else config.intermediate_size
    return ModelSizes(
        parameters=sum(tensors),
        tensors=tuple(tensors),
        layer=max(sum(tensor.numel() for tensor in layer.parameters()) for layer in layers),
        embedding=embedding.numel(),
        head=0 if head is embedding else head.numel(),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=width,
        keys=(getattr(config, "num_key_value_heads", None) or heads)
        * (getattr(config, "head_dim", None) or config.hidden_size // heads),
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        linear=tuple(part.in_features + part.out_features for part in linear if part.weight is not head),
    )


def model_vocabulary(model: str) -> int | None:
    """Returns the size of a model's vocabulary; None if its configuration does not give it.

    Raises:
        UserError: The model's configuration cannot be read.
    """
    size = getattr(config_of(model), "vocab_size", None)
    return size if isinstance(size, int) else None


def longer_context(model: str, configured: int | None) -> str:
    """Returns advice for a context that is too short: the limiting key, or another model."""
    own = model_context_length(model, None)
    if configured is not None and configured < own:
        return f"raise engine.context_length ({configured}; the model's own context is {own})"
    return "take a model with a longer context"


def model_context_length(model: str, configured: int | None) -> int:
    """Returns the longest sequence in tokens: the configured length, at most the model's own.

    Raises:
        UserError: The model's configuration cannot be read.
    """
    try:
        own = int(config_of(model).max_position_embeddings)
    except (ValueError, AttributeError) as error:
        raise UserError(f"model {model}: {first_line(error)}; give a model that writes text") from None
    return min(own, configured) if configured else own
