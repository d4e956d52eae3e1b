"""Models of the hub.

Whether the hub can be reached is checked once, because the hub's library tries for half a minute per file.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.checkpoints import has_weights, refuse_more_than_text
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.shipped import where_from

ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Kinds of layers, by their names in a model's configuration, that are attention."""
NO_ATTENTION = ("mamba", "ssm", "conv")
"""Words in the keys of the configuration of a model with other layers."""
PATIENCE_SECONDS = 10.0
"""Seconds to wait for the hub's answer about a model; a download has no such limit."""


class HubUnreachableError(UserError):
    """The hub does not answer, so that a model that is not on this machine cannot be checked."""


@cache
def look_for(name: str) -> None:
    """Checks that the hub has a model, unless the model is on this machine already.

    Raises:
        HubUnreachableError: The hub does not answer.
        UserError: The hub has no such model, or the name is a path below `data/`.
    """
    if name.startswith("data/"):  # where this program's own models are, never an owner on the hub
        raise UserError(f"{name}: no such model; {where_from(name) or 'give a folder or a hub name'}")
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        if isinstance(try_to_load_from_cache(name, "config.json"), str):
            return
        logger.info(f"looking for {name} on the hub")
        HfApi().model_info(name, timeout=PATIENCE_SECONDS)
    except RepositoryNotFoundError:
        raise UserError(
            f"model {name}: the hub has no model of this name, or you may not read it; give a folder or a hub name"
        ) from None
    except HfHubHTTPError:
        return  # the model exists; loading it reports the error
    except Exception as error:  # of whichever library carries the request
        raise HubUnreachableError(
            f"model {name}: no such folder, and the hub cannot be asked ({first_line(error)}); "
            "give a folder or a hub name"
        ) from None


def config_of(model: str) -> Any:
    """Returns the transformers configuration of a text model, given a folder with a config.json or a hub name.

    Raises:
        UserError: The configuration is missing or invalid, or that of a model that also sees or hears.
    """
    config = any_config_of(model)
    refuse_more_than_text(model, config)
    return config


def any_config_of(model: str) -> Any:
    """Returns the transformers configuration of a model of any kind.

    Raises:
        UserError: The configuration is missing or invalid.
    """
    from transformers import AutoConfig

    try:
        if not Path(model).exists():
            look_for(model)
        return AutoConfig.from_pretrained(model)
    except UserError:
        raise
    except Exception as error:  # values of another type raise errors of the hub's library
        raise UserError(
            f"model {model}: cannot be loaded ({first_line(error)}); give a folder with a config.json, or a hub name"
        ) from None


def only_attention(config: Any) -> bool:
    """Whether a model has neither convolutions nor recurrent layers, by its transformers configuration."""
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= ATTENTION and not any(word in key for key in config.to_dict() for word in NO_ATTENTION)


def fetched(name: str, patterns: Sequence[str]) -> Path:
    """Returns the folder of a hub model in the local cache; downloads the model if its weights are missing.

    Args:
        patterns: Names of the files to download. Pickles (`*.bin`) are left out if the model has safetensors.

    Raises:
        UserError: The hub has no such model, or the download fails.
    """
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    look_for(name)
    config = try_to_load_from_cache(name, "config.json")
    if isinstance(config, str) and has_weights(Path(config).parent):
        return Path(config).parent
    logger.info(f"downloading {name} from the hub")
    try:
        folder = Path(snapshot_download(name, allow_patterns=[pattern for pattern in patterns if pattern != "*.bin"]))
        if not has_weights(folder):
            folder = Path(snapshot_download(name, allow_patterns=[*patterns]))
    except Exception as error:  # of whichever library carries the request
        raise UserError(f"model {name}: cannot be downloaded ({first_line(error)}); give a folder") from None
    if not has_weights(folder) and not any(folder.glob("*.bin")):  # offline the library returns what is there
        raise UserError(f"model {name}: its weights are not in the local cache, and the hub gives none; give a folder")
    return folder
