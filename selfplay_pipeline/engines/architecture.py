"""Compares models: a server that loads another model's weights keeps the rest of its first model.

SGLang loads only tensors, and keeps the architecture, the positions and the context length.
"""

from __future__ import annotations

from typing import Any

_OTHER_KEYS = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
"""Keys of a model's configuration that do not change what it computes from its weights."""


def differences(serving: str, checkpoint: str) -> list[str] | None:
    """Returns the keys that differ between two models so that the server of one cannot serve the other.

    Returns None if a configuration cannot be read on this machine.
    """
    before, after = _configuration(serving), _configuration(checkpoint)
    if before is None or after is None:
        return None
    return sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))


def _configuration(model: str) -> dict[str, Any] | None:
    """Returns the configuration of a model, as transformers reads it; None if it cannot be read."""
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True).to_dict()
    except (OSError, ValueError):
        return None
    return {key: value for key, value in config.items() if key not in _OTHER_KEYS}
