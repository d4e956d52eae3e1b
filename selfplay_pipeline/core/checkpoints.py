"""Checks that a folder holds a model, based on its configuration and the headers of its weights.

SGLang and transformers replace missing or misnamed weights by random ones, and play with them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.shipped import where_from
from selfplay_pipeline.core.small_files import check_is_no_pattern, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
"""File of the weights of a model without an index; the only name that SGLang and transformers both read then."""
LARGEST_TOKENIZER = 2**27
"""Largest size in bytes of a tokenizer's file."""
ADAPTER = "adapter_config.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
WEIGHTS = ("*.safetensors", *PICKLES, "*.gguf", "*.h5", "*.msgpack")
"""Patterns of files that hold weights, except those that `NO_WEIGHTS` matches."""
NO_WEIGHTS = (
    r"\.|(training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler|dl_state_dict)[^.]*\.(bin|pt|pth)$"
)
"""Pattern of files that no engine reads: hidden ones, and the state that other trainers leave in a checkpoint."""
LARGEST = {"num_hidden_layers": 10_000, "max_position_embeddings": 10**9}
"""Largest plausible value of each size in a model's config.json."""
LARGEST_OTHERWISE = 10_000_000
"""Largest plausible value of the sizes that are not in `LARGEST`."""
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings", "n_embd", "n_layer", "n_head", "n_positions", "num_experts",
    "num_local_experts", "moe_intermediate_size",
)  # fmt: skip
BUFFERS = r"\.inv_freq$|\.masked_bias$|\.attn\.bias$|position_ids$"
"""Pattern of tensors that older versions saved and current versions ignore."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Ends of the names of the weights from which logits are computed."""
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight", "word_embeddings.weight")
"""Ends of the names of the weights that embed tokens, to which a head may be tied."""
ROWS_AT_ONCE = 1 << 13

FLOATING = ("F64", "F32", "F16", "BF16")
"""Types of weights that are not quantised."""


class Stored(NamedTuple):
    """One tensor of the weights, as a safetensors header describes it."""

    shape: tuple[int, ...]
    type: str
    """Type of the numbers, such as BF16 or I32."""
    file: Path


Weights = dict[str, Stored]


def check_checkpoint(name: str) -> None:
    """Checks that a name is a whole Hugging Face folder, or may be the name of a hub model.

    Reads configuration, tokenizer and the headers of the weights. A hub is not asked.

    Raises:
        UserError: The name is a path, and the model there is missing, damaged or different from its configuration.
    """
    path = Path(name)
    try:
        exists = path.exists()
    except OSError as error:
        raise UserError(f"{name[:100]}: {error.strerror}") from None
    if not exists and (advice := where_from(name)):
        raise UserError(f"{name}: no such model; {advice}")
    is_path = exists or name.startswith((".", "/", "~")) or name.count("/") > 1
    is_path = is_path or ("/" in name and path.parent.is_dir())
    if not is_path:
        return
    check_is_no_pattern(path)
    if (path / ADAPTER).exists():
        raise UserError(
            f"{name}: holds an adapter ({ADAPTER}), which server and trainer would not both apply; merge it into "
            "its base model, and give the folder of the merged model"
        )
    if not (path / "config.json").is_file():
        raise UserError(f"{name}: no Hugging Face model there (config.json is missing){_inside(path)}")
    config = _settings(path / "config.json")
    _check_sizes(path / "config.json", config)
    for other in ("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
        if (path / other).exists():
            _settings(path / other)
    weights = stored_weights(path)
    _check_vocabulary(path, config)
    _check_against_class(path, config, weights)


def _inside(folder: Path) -> str:
    """Returns advice that names the newest checkpoint of a run, an iteration or a training; "" if there is none."""
    found = [file.parent for at in ("", "*/") for file in folder.glob(f"{at}checkpoint/config.json")]
    if not found:
        return ""
    newest = max(found, key=lambda path: [int(number) for number in re.findall(r"[0-9]+", path.parent.name)])
    others = f", or another of its {len(found)}" if len(found) > 1 else ""
    return f"; give the checkpoint in it, {newest}{others}"


def stored_weights(folder: Path, *, alone: bool = True) -> Weights:
    """Returns the names, shapes and types of the weights, from the headers of the safetensors files.

    Args:
        folder: The folder of the model.
        alone: As for `weight_files`.

    Raises:
        UserError: As for `weight_files`; or a file is damaged, or two files hold a weight of the same name.
    """
    weights: Weights = {}
    for file in weight_files(folder, alone=alone):
        header = _header(file)
        if twice := sorted(weights.keys() & header.keys()):
            raise UserError(f"{file}: holds {twice[0]}, as {weights[twice[0]].file.name} does; copy the model anew")
        weights |= header
    if not weights:
        raise UserError(f"{folder}: its safetensors hold no weights")
    return weights


def number_of_weights(folder: Path) -> int | None:
    """Returns the number of weights of a model; None if it is unknown."""
    try:
        return sum(math.prod(weight.shape) for weight in stored_weights(folder).values())
    except UserError:
        return None


def weight_files(folder: Path, *, alone: bool = True) -> list[Path]:
    """Returns the files of a model's weights: those in its index, or model.safetensors.

    The hash, the checks, the engines and the trainers all go by this list. SGLang, transformers and verl would choose
    among several sets of weights in one folder each in its own way.

    Args:
        folder: The folder of the model; weights in folders inside it are read by nobody.
        alone: Whether to refuse other files of weights. The hub's cache may hold some, which libraries leave out.

    Raises:
        UserError: The folder has no weights, one file is missing, the files are pickles, or there are others.
    """
    files = _named_by_index(folder) if (folder / INDEX).exists() else [folder / SINGLE]
    every = {path.name for pattern in WEIGHTS for path in folder.glob(pattern) if path.is_file()}
    others = sorted(name for name in every - {file.name for file in files} if not re.match(NO_WEIGHTS, name))
    if not files[0].is_file():  # only without an index
        if not others:
            raise UserError(f"{folder}: no weights there (no {SINGLE}); copy the model anew")
        if not others[0].endswith(".safetensors"):
            raise UserError(
                f"{folder}: its weights are pickles ({others[0]}), which can run code when they are loaded; take a "
                "model with safetensors"
            )
        raise UserError(
            f"{folder}: holds {_some(others)}, but neither {SINGLE} nor {INDEX}, by which engine and trainer find "
            "weights; copy the model anew"
        )
    if others and alone:
        raise _two_sets(folder, others)
    return files


def check_cached_weights(folder: Path) -> None:
    """Checks that engine and trainer load the same weights of a hub model, whatever other files libraries leave out.

    Args:
        folder: The folder of the model in the hub's cache, with safetensors.

    Raises:
        UserError: The folder has model.safetensors beside shards, damaged weights, or a head unlike its tied embedding.
    """
    stored = stored_weights(folder, alone=False)
    if (folder / SINGLE).is_file() and all(weight.file.name != SINGLE for weight in stored.values()):
        raise _two_sets(folder, [SINGLE])
    _check_tied(folder, _configuration(folder), stored)


def _two_sets(folder: Path, others: list[str]) -> UserError:
    right = INDEX if (folder / INDEX).exists() else SINGLE
    return UserError(
        f"{folder}: holds {_some(others)} beside the weights of {right}; engine and trainer might load different "
        "ones; keep one set of weights, and move the other files away"
    )


def holds_weights(folder: Path) -> bool:
    """Whether a folder has any file of weights, be it one of several sets."""
    return any(path.is_file() for pattern in WEIGHTS for path in folder.glob(pattern))


def has_weights(folder: Path) -> bool:
    """Whether a folder of the hub's cache holds all weights of a model, as safetensors."""
    try:
        return bool(weight_files(folder, alone=False))
    except UserError:
        return False


def _named_by_index(folder: Path) -> list[Path]:
    index = folder / INDEX
    named = _settings(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise UserError(f"{index}: damaged: it has no weight_map of names; copy the model anew")
    names = sorted(set(named.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{index}: names {name!r}, which is no *.safetensors in its folder; copy the model anew")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: no such file, but {INDEX} names it; copy the model anew")
    if SINGLE in names and len(names) > 1:
        raise UserError(
            f"{index}: names {SINGLE} and other files, of which transformers would load {SINGLE} alone; save the model "
            "anew"
        )
    return [folder / name for name in names]


def _header(file: Path) -> Weights:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as tensors:
            parts = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: Stored(tuple(part.get_shape()), part.get_dtype(), file) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file}: damaged or cut off ({first_line(error)}); copy the model anew") from None


def _settings(path: Path) -> dict[str, Any]:
    settings = read_json(path, "copy the model anew")
    if not isinstance(settings, dict):
        raise UserError(f"{path}: not a JSON object; copy the model anew")
    return settings


def _check_sizes(path: Path, config: Mapping[str, Any]) -> None:
    for key in SIZES:
        value = config.get(key)
        if value is None:
            continue
        largest = LARGEST.get(key, LARGEST_OTHERWISE)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= largest:
            raise UserError(f"{path}: {key} is {value!r}, must be a number from 1 to {largest}; copy the model anew")


def _check_vocabulary(folder: Path, config: Mapping[str, Any]) -> None:
    """Raises UserError unless each token has an embedding; added tokens that are never used need none."""
    path = folder / "tokenizer.json"
    if not path.exists():  # loading the tokenizer reports other formats
        return
    if not path.is_file() or path.stat().st_size > LARGEST_TOKENIZER:
        raise UserError(f"{path}: missing, or larger than {LARGEST_TOKENIZER // 2**20} MiB; copy the model anew")
    from tokenizers import Tokenizer

    try:
        highest = max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False).values(), default=-1)
    except Exception as error:  # the library raises no narrower type
        raise UserError(f"{path}: not a tokenizer ({first_line(error)}); copy the model anew") from None
    size = config.get("vocab_size")
    if isinstance(size, int) and highest >= size:
        raise UserError(
            f"{folder}: its tokenizer has ids up to {highest}, the model has {size} (vocab_size in config.json); they "
            "do not belong together"
        )


def _check_against_class(folder: Path, config: Mapping[str, Any], stored: Weights) -> None:
    """Raises UserError unless the weights belong to the class that the configuration names.

    Quantised models and models of several parts are not compared, because their weights have other names.
    """
    from transformers import CONFIG_MAPPING
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kind, path = config.get("model_type"), folder / "config.json"
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        own = "; models with code of their own (auto_map) are not loaded" if "auto_map" in config else ""
        raise UserError(f"{path}: model_type {kind!r} is not known to transformers{own}")
    whole = "quantization_config" not in config and not any(isinstance(part, dict) for part in map(config.get, _PARTS))
    classes = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    names = {classes} if isinstance(classes, str) else set(classes or ())
    said = config.get("architectures") or []
    if whole and (not names or (said and not names & set(said))):
        does = f"architectures is {said}, " if said and names else ""
        raise UserError(
            f"{path}: {does}model_type {kind} is "
            + (f"that of {' or '.join(sorted(names))}; copy the model anew" if names else "no model that writes text")
        )
    settings = _configuration(folder)
    refuse_more_than_text(str(folder), settings)
    _check_tied(folder, settings, stored)
    if whole and get_checkpoint_conversion_mapping(kind) is None:
        _compare(folder, settings, stored)


def _configuration(folder: Path) -> Any:
    """Returns the transformers configuration of a folder; raises UserError if it cannot be read."""
    from transformers import AutoConfig
    from transformers.utils import logging

    said_by_library = logging.get_verbosity()
    logging.set_verbosity_error()  # the checks of this module refuse what its warnings name, or it is harmless
    try:
        return AutoConfig.from_pretrained(folder)
    except Exception as error:  # each configuration class has checks of its own
        raise UserError(f"{folder / 'config.json'}: cannot be read ({first_line(error)})") from None
    finally:
        logging.set_verbosity(said_by_library)


_PARTS = ("text_config", "vision_config", "audio_config")


def refuse_more_than_text(model: str, config: Any) -> None:
    """Raises UserError if a transformers configuration is that of a model that also sees or hears."""
    if getattr(config, "vision_config", None) is not None:
        raise UserError(
            f"model {model}: a vision model; `selfplay model text {model} --output FOLDER` writes the language model "
            "in it, which can play"
        )
    if getattr(config, "audio_config", None) is not None:
        raise UserError(f"model {model}: a model that hears; give a text model")


def _check_tied(folder: Path, settings: Any, stored: Weights) -> None:
    """Raises UserError if the head is tied to the embedding and also stored with other values.

    SGLang then uses the embedding, and transformers the stored head.
    """
    heads, embeddings = (
        sorted((name for name in stored if "mtp." not in name and name.endswith(ends)), key=len)
        for ends in (HEADS, EMBEDDINGS)
    )
    text = settings.get_text_config()  # of a model of several parts, either level may have the key
    tied = getattr(text, "tie_word_embeddings", getattr(settings, "tie_word_embeddings", False))
    if not tied or not heads or not embeddings:
        return
    one, other = ((stored[name].file, name, stored[name].file.stat().st_mtime_ns) for name in (heads[0], embeddings[0]))
    if not _equal(one, other):
        raise UserError(
            f"{folder}: {heads[0]} differs from {embeddings[0]}, but config.json has tie_word_embeddings: true, so "
            "that SGLang would play with one and transformers with the other; set it to false if the model was trained "
            f"with both, or save the model without {heads[0]}"
        )


@lru_cache
def _equal(one: tuple[Path, str, int], other: tuple[Path, str, int]) -> bool:
    """Whether two weights have the same values, read some rows at a time.

    Args:
        one: File, name, and time of the file's last change, which lets the cache notice a change.
        other: The other weight.
    """
    import torch
    from safetensors import safe_open

    with safe_open(one[0], framework="pt") as first, safe_open(other[0], framework="pt") as second:
        parts = first.get_slice(one[1]), second.get_slice(other[1])
        if parts[0].get_shape() != parts[1].get_shape():
            return False
        blocks = range(0, parts[0].get_shape()[0], ROWS_AT_ONCE)
        return all(torch.equal(*(part[start : start + ROWS_AT_ONCE].float() for part in parts)) for start in blocks)


def _compare(folder: Path, settings: Any, stored: Weights) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(settings)
    except Exception as error:  # sizes that do not fit each other; any layer may raise
        raise UserError(f"{folder / 'config.json'}: no model can be built ({first_line(error)})") from None
    tensors = model.state_dict()
    expected = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    prefix = f"{model.base_model_prefix}."
    if not any(name.startswith(prefix) for name in stored):  # saved without the prefix of the base model
        stored = {f"{prefix}{name}" if f"{prefix}{name}" in expected else name: one for name, one in stored.items()}
    tied = set(model._tied_weights_keys or ()) if settings.tie_word_embeddings else set()
    missing = _unless(expected.keys() - stored.keys() - tied, model._keys_to_ignore_on_load_missing)
    further = _unless(
        stored.keys() - expected.keys() - tied, [*(model._keys_to_ignore_on_load_unexpected or ()), BUFFERS]
    )
    known = sorted(expected.keys() & stored.keys())
    differ = [name for name in known if expected[name] != stored[name].shape]
    whole = [name for name in known if tensors[name].is_floating_point() and stored[name].type not in FLOATING]
    kind = type(model).__name__
    advice = "config.json and weights do not belong together, or weights are missing"
    if missing:
        raise UserError(f"{folder}: its weights lack {_some(missing)} of {kind}; {advice}")
    if further:
        raise UserError(f"{folder}: its weights hold {_some(further)}, unknown to {kind}; {advice}")
    if differ:
        name = differ[0]
        raise UserError(
            f"{folder}: {name} has shape {list(stored[name].shape)}, {kind} expects {list(expected[name])}; {advice}"
        )
    if whole:
        raise UserError(
            f"{folder}: {_some(whole)} stored as {stored[whole[0]].type}, not as BF16 or the like, and config.json has "
            "no quantization_config; copy the model anew"
        )


def _unless(names: Iterable[str], patterns: Iterable[str] | None) -> list[str]:
    return sorted(name for name in names if not any(re.search(pattern, name) for pattern in patterns or ()))


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def vocabulary_of(model: str) -> int | None:
    """Returns the number of token ids from the folder's `config.json`; None if it is unknown."""
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return size if isinstance(size, int) and size > 0 else None
