"""Facts about a model and this machine that an engine needs before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfplay_pipeline.config.load import gpu_visible
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.hub import look_for


def resolve_device(device: str) -> str:
    """Returns the device; for `auto`, cuda if a GPU is visible, else cpu."""
    return ("cuda" if gpu_visible() else "cpu") if device == "auto" else device


def model_vocabulary(model: str) -> int | None:
    """Returns the size of a model's vocabulary; None if its configuration does not give it.

    Raises:
        UserError: The model's configuration cannot be read.
    """
    size = getattr(_config_of(model), "vocab_size", None)
    return size if isinstance(size, int) else None


def model_context_length(model: str, configured: int | None) -> int:
    """Returns the longest sequence in tokens: the configured length, at most the model's own.

    Raises:
        UserError: The model's configuration cannot be read.
    """
    try:
        own = int(_config_of(model).max_position_embeddings)
    except (ValueError, AttributeError) as error:
        raise _unusable(model, error) from None
    return min(own, configured) if configured else own


def _config_of(model: str) -> Any:
    if not Path(model).exists():
        look_for(model)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise _unusable(model, error) from None


def _unusable(model: str, error: Exception) -> UserError:
    return UserError(f"model {model}: cannot be loaded ({first_line(error)}); give a folder or a hub name")
