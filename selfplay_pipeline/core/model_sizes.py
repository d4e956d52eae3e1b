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


PER_TOKEN = ("num_experts_per_tok", "top_k_experts")
"""Names in config.json of the number of experts that compute a token."""
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention")
"""Kinds of layers, as config.json names them, with queries, keys and values for each token."""


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
    linear: tuple[tuple[str, int], ...]
    """Name of each linear layer but the head, with its number of inputs and outputs."""
    norms: int = 2
    """Number of norms over the hidden size in a layer."""
    queries: int = 0
    """Size of a token's queries in one layer; 0 for the hidden size."""
    head_norms: int = 0
    """Numbers of a token's queries and keys that are normed for each head; 0 without such norms."""
    experts: int = 0
    """Number of experts that compute a token; 0 without experts."""
    uncounted: tuple[str, ...] = ()
    """Parts of the model whose memory the estimates do not know."""

    @property
    def targets(self) -> list[str]:
        """Last parts of the names of the layers that get a LoRA adapter; empty for all linear layers but the head.

        In a model with experts only attention gets one: peft adapts the stacked weights of experts, which checkpoints
        store apart, and which servers cannot merge.
        """
        names = (name.rpartition(".") for name, _ in self.linear if "attn" in name or "attention" in name)
        return [*dict.fromkeys(last for _, _, last in names)] if self.experts else []

    @property
    def adapter(self) -> int:
        """Number of parameters of a LoRA adapter of rank 1: inputs + outputs of each of its layers."""
        targets = self.targets
        return sum(size for name, size in self.linear if not targets or name.rpartition(".")[2] in targets)


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
    from transformers.pytorch_utils import Conv1D

    tensors = [tensor.numel() for tensor in model.parameters()]
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    kinds = set(model._no_split_modules or ())  # what FSDP gathers at a time, too
    layers = [part for part in model.modules() if type(part).__name__ in kinds]
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, Linear | Conv1D)]
    heads = config.num_attention_heads
    experts = experts_of(config)
    width = getattr(config, "intermediate_size", 0) if experts else config.intermediate_size
    if experts:  # those that every token passes are linear layers
        shared = [part.weight.shape[0] for name, part in layers[-1].named_modules() if name.endswith("up_proj")]
        width = experts * (getattr(config, "moe_intermediate_size", None) or width) + sum(shared)
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    queries, keys = heads * size, (getattr(config, "num_key_value_heads", None) or heads) * size
    every = [getattr(part, "weight", None) for part in layers[-1].modules() if "Norm" in type(part).__name__]
    norms = [weight.numel() for weight in every if weight is not None]
    return ModelSizes(
        parameters=sum(tensors),
        tensors=tuple(tensors),
        layer=max(sum(tensor.numel() for tensor in layer.parameters()) for layer in layers),
        embedding=embedding.numel(),
        head=0 if head is embedding else head.numel(),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=width,
        keys=keys,
        vocabulary=config.vocab_size,
        context=config.max_position_embeddings,
        linear=tuple((name, sum(part.weight.shape)) for name, part in linear if part.weight is not head),
        norms=norms.count(config.hidden_size),
        queries=queries,
        head_norms=queries + keys if size in norms and size != config.hidden_size else 0,
        experts=experts,
        uncounted=_uncounted(model, config, experts),
    )


def experts_of(config: Any) -> int:
    """Returns the number of experts that compute a token, by a transformers configuration; 0 without experts."""
    return next(filter(None, (getattr(config, name, None) for name in PER_TOKEN)), 0)


def _uncounted(model: Any, config: Any, experts: int) -> tuple[str, ...]:
    """Returns the parts of a model that are no attention, feed-forward layer, mixture of experts, norm or embedding."""
    from torch.nn import Embedding, Linear
    from transformers.pytorch_utils import Conv1D

    kinds = {kind for kind in getattr(config, "layer_types", None) or () if kind not in ATTENTION}
    if getattr(config, "kv_lora_rank", None):
        kinds.add("compressed keys and values")
    if getattr(config, "global_head_dim", None) not in (None, getattr(config, "head_dim", None)):
        kinds.add("heads of two sizes")
    if getattr(config, "hidden_size_per_layer_input", None):
        kinds.add("inputs of each layer")
    for part in model.modules():
        own, name = [tensor.ndim for tensor in part.parameters(recurse=False)], type(part).__name__
        expert = experts and name.endswith(("Experts", "NaiveMoe", "Router"))
        if max(own, default=0) > 1 and not isinstance(part, Linear | Conv1D | Embedding) and not expert:
            kinds.add(name)
    return tuple(sorted(kinds))


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
