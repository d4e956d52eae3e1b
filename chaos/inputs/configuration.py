"""Bad configuration files: every key with a wrong value, every section with an unknown key, and hostile YAML."""

from __future__ import annotations

import os
import types
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from chaos.inputs.base import Input, Prepare
from chaos.inputs.good import Good
from selfplay_pipeline.config.schema import Config

KIND = "configuration"
FILE = "bad.yaml"
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)
"""YAML that expands to nine to the power of twelve values."""


def written(text: str | bytes, name: str = FILE) -> Prepare:
    """Returns a function that writes the file with exactly this text."""

    def prepare(folder: Path, good: Good) -> None:
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return prepare


def keys(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields every key of the configuration with its type, including sections."""
    for name, field in model.model_fields.items():
        annotation = field.annotation
        yield (*path, name), annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from keys(annotation, (*path, name))


def wrong_values(annotation: Any) -> list[str]:
    """Returns YAML values that are wrong for this type."""
    if get_origin(annotation) is Annotated:
        return wrong_values(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return wrong_values(next(kind for kind in get_args(annotation) if kind is not type(None)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["3", "[1, 2]", "text"]
    if get_origin(annotation) is Literal:
        return ["nonsense", "3", "[cpu]", '"\\e[31mcpu"']
    if annotation is bool:
        return ["perhaps", "7", "[true]", "{on: 1}"]
    if annotation is int:
        return ["many", "1.5", "[1]", "{one: 1}", "2024-01-01", ".inf", ".nan"]
    if annotation is float:
        return ["much", "[1.0]", "{one: 1.0}", "2024-01-01", ".inf", "-.inf", ".nan"]
    if annotation is str:
        return ["[a, b]", "{a: b}", "7", "2024-01-01"]
    if get_origin(annotation) is list:
        return ["3", "{a: b}", "[[a]]", "text"]
    return ["[1]", "{a: b}", "7"]


def nested(path: tuple[str, ...], value: str) -> str:
    """Returns the key with its value, inside its sections."""
    return "".join("  " * depth + f"{name}:\n" for depth, name in enumerate(path[:-1])) + (
        "  " * (len(path) - 1) + f"{path[-1]}: {value}\n"
    )


def inputs(rng: Random) -> Iterator[Input]:
    """Yields a wrong value for each key and an unknown key in each section; then hand-written files."""
    command = ("config", "--config", FILE)
    sections: list[tuple[str, ...]] = [()]
    for path, annotation in keys(Config):
        name = ".".join(path)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            sections.append(path)
        text = nested(path, rng.choice(wrong_values(annotation)))
        yield Input(KIND, name, command, rf"bad\.yaml.*{name}", written(text))
    for section in sections:
        text = nested((*section, "colour"), "3")
        yield Input(KIND, f"unknown key {'.'.join(section) or 'top'}", command, r"bad\.yaml:\d+.*colour", written(text))
    yield from _hostile(command)
    yield from _boards()
    yield from _paths()


def _hostile(command: tuple[str, ...]) -> Iterator[Input]:
    place = r"bad\.yaml"
    texts: dict[str, str | bytes] = {
        "bomb of aliases": BOMB,
        "bomb within a section": "game:\n" + "".join(f"  {line}\n" for line in BOMB.splitlines()),
        "bomb of merges": "a0: &a0 {k0: 1, k1: 1}\n"
        + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)),
        "bomb where a word is expected": BOMB + "base: *a11\n",
        "bomb where a list is expected": BOMB + "train: {loggers: *a11}\n",
        "infinite": "train: {learning_rate: .inf}\n",
        "not a number": "generate: {temperature: .nan}\n",
        "deep lists": "model: " + "[" * 20_000 + "]" * 20_000,
        "deep sections": "".join(" " * depth + "a:\n" for depth in range(3_000)),
        "huge": b"# " + b"x" * 60_000_000 + b"\nseed: 1\n",
        "huge list": "model: [" + "1, " * 500_000 + "1]\n",
        "duplicate key": "seed: 1\nseed: 2\n",
        "duplicate section": "game: {size: 3}\ngame: {size: 4}\n",
        "duplicate key in a section": "train:\n  epochs: 1\n  epochs: 2\n",
        "duplicate key written otherwise": 'seed: 1\n"seed": 2\n',
        "itself": "&a [*a]\n",
        "a section within itself": "game: &a\n  size: *a\n",
        "several documents": "seed: 1\n---\nseed: 2\n",
        "python object": "model: !!python/object/apply:os.system ['touch pwned']\n",
        "python name": "model: !!python/name:os.system\n",
        "unknown tag": "model: !secret x\n",
        "set": "engine: !!set {kind, device}\n",
        "pairs": "engine: !!omap [kind: sglang]\n",
        "key that is no text": "1: 2\n",
        "key that is nothing": "null: 2\n",
        "key that is a list": "? [a, b]\n: 1\n",
        "key that is a date": "2024-01-01: 1\n",
        "key with an escape": '"\\e[31mseed\\e]0;owned\\a": 1\n',
        "key that turns text around": '"\\u202Eseed": 1\n',
        "key with a line break": '"see\\nd": 1\n',
        "value with an escape": 'engine: {kind: "\\e[2Jsglang"}\n',
        "raw escape": b"seed: \x1b[31m1\n",
        "surrogate": 'model: "\\uD800"\nseed: x\n',
        "nul": b"seed: \x00\n",
        "latin-1": b"model: m\xfcller\n",
        "binary": Random(2).randbytes(4000),
        "utf-16 with damage": "seed: 1\n".encode("utf-16") + b"\x00",
        "tab": "game:\n\tsize: 3\n",
        "open quote": 'model: "x\n',
        "open bracket": "model: [x\n",
        "list": "- seed: 1\n",
        "text": "seed\n",
        "number": "7\n",
        "integer of 5,000 digits": f"seed: 1{'0' * 5000}\n",
        "float beyond floats": "generate: {temperature: 1.0e+999}\n",
        "alias without anchor": "seed: *a\n",
        "base that is unknown": "base: huge\n",
        "base that is a list": "base: [tiny]\n",
        "base that is a section": "base: {tiny: 1}\n",
        "base that is a number": "base: 3\n",
        "ends of a scale": "game: {scale_min: 5, scale_max: 2}\n",
        "memory above all": "engine: {memory_fraction: 1.0}\n",
        "address with a password": "partner: {base_url: 'http://me:secret@localhost/v1'}\n",
    }
    for name, text in texts.items():
        yield Input(KIND, name, command, place, written(text))


def _boards() -> Iterator[Input]:
    """Yields boards without any possible state, which must be refused before sampling starts."""
    command = ("games", "--config", FILE, "--num-train", "4", "--num-test", "2", "--output", "out")
    boards = {
        "infinite": "size: 8, hard_factor: .inf",
        "vast": "size: 8, hard_factor: 1.0e+300",
        "large": "size: 8, hard_factor: 50",
        "all seen": "size: 8, p_visible: 1.0, hard_factor: 1.25",
        "nothing to score": "size: 8, max_score: 1, p_visible: 0.000001, hard_factor: 3",
    }
    for name, board in boards.items():
        yield Input(KIND, f"hopeless board {name}", command, r"game", written(f"game: {{{board}}}\n"))


def _paths() -> Iterator[Input]:
    def with_link(target: str) -> Prepare:
        return lambda folder, good: (folder / FILE).symlink_to(target)

    def with_folder(folder: Path, good: Good) -> None:
        (folder / FILE).mkdir()

    def with_pipe(folder: Path, good: Good) -> None:
        os.mkfifo(folder / FILE)

    places: dict[str, Prepare] = {
        "a folder": with_folder,
        "a pipe": with_pipe,
        "a device without end": with_link("/dev/zero"),
        "a device of chance": with_link("/dev/urandom"),
        "what cannot be read": with_link("/proc/self/mem"),
        "a link to itself": with_link(FILE),
        "a link to nothing": with_link("nowhere.yaml"),
    }
    for name, prepare in places.items():
        yield Input(KIND, f"file is {name}", ("config", "--config", FILE), r"bad\.yaml", prepare)
    for name, path, says in (
        ("missing", "missing.yaml", "missing"),
        ("too long", "x" * 300 + ".yaml", "--config"),
        ("with an escape", "\x1b[31mred.yaml", "red"),
        ("with a line break", "a\nb.yaml", "--config"),
        ("below a file", "data/tiny_model/config.json/x.yaml", "--config"),
        ("empty", "", "--config"),
        ("the folder itself", ".", "--config"),
    ):
        for command in ("config",) if name != "missing" else ("config", "generate", "iterate", "train", "convert"):
            yield Input(KIND, f"{command} with a path {name}", (command, "--config", path), says)
