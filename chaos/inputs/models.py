"""Bad model folders: damaged configurations, weights, tokenizers and templates, and folders that would run code."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import JSON_FILES, WHOLE_FILES, Damage, as_text, edited_json
from chaos.inputs.good import MODEL, Good, copy_folder

KIND = "model folders"
PLAY = ("evaluate", "bad_model", "--engine", "transformers", "--num-states", "2", "--episodes", "1", "--output", "out")
CHECK = ("generate", "--model", "bad_model", "--dry-run", "--output", "out/games.jsonl")
TRAIN = ("train", "train.parquet", "--model", "bad_model", "--output", "out")
ONLINE = ("train-online", "--model", "bad_model", "--output", "out")
COMMANDS = {"evaluate": PLAY, "generate": CHECK, "iterate": ("iterate", "--model", "bad_model", "--dry-run")}
SAYS = r"bad_model"


def model_changed(change: Callable[[Path], None]) -> Prepare:
    """Returns a function that writes a damaged copy of the tiny model."""

    def prepare(folder: Path, good: Good) -> None:
        copy_folder(MODEL, folder / "bad_model")
        change(folder / "bad_model")

    return prepare


def file_changed(name: str, damage: Damage) -> Prepare:
    return model_changed(lambda folder: damage(folder / name))


def inputs(rng: Random) -> Iterator[Input]:
    """Yields damage to each file of the folder, each read by a command that loads it."""

    def case(what: str, prepare: Prepare, command: tuple[str, ...] = PLAY) -> Input:
        return Input(KIND, what, command, SAYS, prepare, codes=(1, 2))

    for number, (name, damage) in enumerate(JSON_FILES.items()):
        reader = list(COMMANDS)[number % 3]
        yield case(f"{reader}, config.json is {name}", file_changed("config.json", damage), COMMANDS[reader])
    for path, value in _configurations():
        what = f"{path} " + (f"is {json.dumps(value)[:30]}" if value is not KeyError else "is missing")
        yield case(f"evaluate, {what}", file_changed("config.json", edited_json(_setting(path, value))))
    for name in ("unknown", "gpt2", "llama", "bert", "t5", "qwen2_vl"):
        yield case(
            f"evaluate, model_type is {name}", file_changed("config.json", edited_json(_setting("model_type", name)))
        )
    yield from (
        case(f"evaluate, weights {name}", file_changed("model.safetensors", damage)) for name, damage in _weights()
    )
    yield case("evaluate, weights missing", model_changed(lambda folder: (folder / "model.safetensors").unlink()))
    yield case("evaluate, weights pickled", model_changed(_pickled))
    yield case("evaluate, weights split with a part missing", model_changed(_split))
    yield case("evaluate, code of its own", model_changed(_with_code))
    yield case("train, code of its own", _with_rows(_with_code), TRAIN)
    for number, name in enumerate(("truncated", "empty", "list", "binary", "pipe")):
        reader = list(COMMANDS)[number % 3]
        prepare = file_changed("tokenizer.json", JSON_FILES[name])
        yield case(f"{reader}, tokenizer.json is {name}", prepare, COMMANDS[reader])
    for name in ("truncated", "list", "binary"):
        yield case(
            f"evaluate, tokenizer_config.json is {name}", file_changed("tokenizer_config.json", JSON_FILES[name])
        )
    for name in ("list",):
        yield case(
            f"evaluate, generation_config.json is {name}", file_changed("generation_config.json", JSON_FILES[name])
        )
    yield case("generate, no tokenizer", model_changed(_no_tokenizer), CHECK)
    yield case("generate, another tokenizer", file_changed("tokenizer.json", edited_json(_shifted)), PLAY)
    for name, template in _templates().items():
        yield case(f"generate, template {name}", file_changed("chat_template.jinja", as_text(template)), CHECK)
    yield case("generate, no template", model_changed(lambda folder: (folder / "chat_template.jinja").unlink()), CHECK)
    yield case(
        "train, config.json is truncated", _with_rows(lambda m: WHOLE_FILES["truncated"](m / "config.json")), TRAIN
    )
    yield case(
        "train, weights are truncated", _with_rows(lambda m: WHOLE_FILES["truncated"](m / "model.safetensors")), TRAIN
    )
    yield case("train, weights missing", _with_rows(lambda m: (m / "model.safetensors").unlink()), TRAIN)
    yield case(
        "train, model_type is gpt2",
        _with_rows(lambda m: edited_json(_setting("model_type", "gpt2"))(m / "config.json")),
        TRAIN,
    )
    yield case("train-online, config.json is truncated", file_changed("config.json", WHOLE_FILES["truncated"]), ONLINE)
    yield case(
        "train-online, weights are truncated", file_changed("model.safetensors", WHOLE_FILES["truncated"]), ONLINE
    )
    yield case(
        "convert, tokenizer.json is truncated",
        _check_rows,
        ("convert", "--check", "train.parquet", "--model", "bad_model"),
    )


def _setting(name: str, value: Any) -> Callable[[Any], Any]:
    def change(config: Any) -> Any:
        return {key: old for key, old in config.items() if key != name} | ({} if value is KeyError else {name: value})

    return change


def _configurations() -> list[tuple[str, Any]]:
    return [
        ("model_type", KeyError), ("model_type", 7), ("model_type", "\x1b[31mqwen2"), ("vocab_size", -1),
        ("vocab_size", 64), ("vocab_size", 100_000), ("vocab_size", "many"), ("hidden_size", 0), ("hidden_size", 96),
        ("hidden_size", "wide"), ("num_hidden_layers", -1), ("num_hidden_layers", 2), ("num_hidden_layers", 9),
        ("num_hidden_layers", 10**9), ("num_attention_heads", 0), ("num_attention_heads", 7),
        ("max_position_embeddings", 0), ("max_position_embeddings", "long"), ("max_position_embeddings", None),
        ("rms_norm_eps", "small"), ("rope_parameters", {"rope_type": "unheard"}),
        ("eos_token_id", "end"),
    ]  # fmt: skip


def _weights() -> Iterator[tuple[str, Damage]]:
    yield from (
        (f"are {name}", WHOLE_FILES[name]) for name in ("truncated", "empty", "binary", "folder", "loop", "pipe")
    )
    yield "are text", as_text("weights\n")

    def edited(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
        def damage(path: Path) -> None:
            from safetensors.torch import load_file, save_file

            save_file(change(load_file(path)), path, metadata={"format": "pt"})

        return damage

    def header(size: int) -> Damage:
        def damage(path: Path) -> None:
            path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])

        return damage

    def all_of(value: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda tensors: {name: tensor.float().fill_(value) for name, tensor in tensors.items()}

    def one_of(value: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
        def change(tensors: dict[str, Any]) -> dict[str, Any]:
            name = sorted(tensors)[0]
            tensors[name].view(-1)[0] = value
            return tensors

        return change

    yield "with a header of 2^63 bytes", header(2**63)
    yield "with a header of 3 bytes", header(3)
    yield "not a number", edited(all_of(float("nan")))
    yield "with one not a number", edited(one_of(float("nan")))
    yield "with one infinite", edited(one_of(float("inf")))
    yield "without one tensor", edited(lambda tensors: dict(sorted(tensors.items())[1:]))
    yield "under other names", edited(lambda tensors: {f"x.{name}": tensor for name, tensor in tensors.items()})
    yield (
        "of other shapes",
        edited(lambda tensors: {name: tensor[..., :-1].contiguous() for name, tensor in tensors.items()}),
    )
    yield "of whole numbers", edited(lambda tensors: {name: tensor.int() for name, tensor in tensors.items()})


class _Touch:
    """Object that creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("pwned", "w"))


def _pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"model.embed_tokens.weight": _Touch()}))
        archive.writestr("archive/version", "3\n")


def _split(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    parts = {"metadata": {}, "weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(parts))


def _with_code(folder: Path) -> None:
    """Write a configuration that names a module next to it, whose import creates a file."""
    names = {name: f"hostile.{kind}" for name, kind in (("AutoConfig", "C"), ("AutoModelForCausalLM", "M"))}
    config = json.loads((folder / "config.json").read_text()) | {"model_type": "hostile", "auto_map": names}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "hostile.py").write_text("open('pwned', 'w')\n")


def _with_rows(change: Callable[[Path], None]) -> Prepare:
    damaged = model_changed(change)

    def prepare(folder: Path, good: Good) -> None:
        damaged(folder, good)
        (folder / "train.parquet").write_bytes(good.parquet.read_bytes())

    return prepare


def _check_rows(folder: Path, good: Good) -> None:
    _with_rows(lambda model: WHOLE_FILES["truncated"](model / "tokenizer.json"))(folder, good)


def _no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()


def _shifted(tokenizer: Any) -> Any:
    """Increase all ids by 100,000."""
    for token in tokenizer["added_tokens"]:
        token["id"] += 100_000
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {token: number + 100_000 for token, number in vocabulary.items()}
    return tokenizer


def _templates() -> dict[str, str]:
    return {
        "with an error of syntax": "{% for m in messages %}{{ m.content }",
        "empty": "",
        "of constant text": "hello",
        "with an unknown name": "{{ nobody.content }}",
        "that raises": "{{ raise_exception('\x1b[31mno') }}",
        "that reaches for Python": "{{ cycler.__init__.__globals__.os.system('touch pwned') }}",
        "that includes": "{% include '/etc/passwd' %}",
    }
