"""Facts about a model and this machine that an engine needs before it starts."""

from __future__ import annotations

from typing import Literal

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.gpus import gpu_visible
from selfplay_pipeline.core.hub import config_of

Device = Literal["cpu", "cuda"]


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Device:
    """Returns the device; for `auto`, cuda if a GPU is visible, else cpu."""
    return ("cuda" if gpu_visible() else "cpu") if device == "auto" else device


def model_vocabulary(model: str) -> int | None:
    """Returns the size of a model's vocabulary; None if its configuration does not give it.

    Raises:
        UserError: The model's configuration cannot be read.
    """
    size = getattr(config_of(model), "vocab_size", None)
    return size if isinstance(size, int) else None


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
