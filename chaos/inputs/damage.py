"""Damage to a value, a line or a file, independent of its content."""

from __future__ import annotations

import copy as copies
import gzip
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[Path], None]
"""Function that damages an existing file."""


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def binary(path: Path) -> None:
    path.write_bytes(Random(1).randbytes(5000))


def latin(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\xe4\xf6\xfc\n")


def sixteen_bits(path: Path) -> None:
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))


def zipped(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes()))


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe_instead(path: Path) -> None:
    """Replace the file by a pipe without a writer, which blocks any reader."""
    path.unlink()
    os.mkfifo(path)


def device_instead(path: Path) -> None:
    """Replace the file by an endless device."""
    path.unlink()
    path.symlink_to("/dev/zero")


def loop_instead(path: Path) -> None:
    """Replace the file by a link to itself."""
    path.unlink()
    path.symlink_to(path.name)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000 + "\n")


def as_text(text: str) -> Damage:
    """Returns a damage that replaces the text of the file."""

    def damage(path: Path) -> None:
        path.write_text(text)

    return damage


WHOLE_FILES: dict[str, Damage] = {
    "truncated": truncated, "empty": empty, "binary": binary, "folder": folder_instead, "pipe": pipe_instead,
    "device": device_instead, "loop": loop_instead,
}  # fmt: skip
"""Damages for a file of any format."""
JSON_FILES: dict[str, Damage] = {name: damage for name, damage in WHOLE_FILES.items() if name != "loop"} | {
    "deep": deep, "utf-16": sixteen_bits, "list": as_text("[1, 2]\n"), "null": as_text("null\n"),
    "string": as_text('"text"\n'), "huge number": as_text('{"seed": 1' + "0" * 5000 + "}"),
}  # fmt: skip
"""Damages for a file with a JSON object. `loop` is left out, because a dangling link counts as a missing file."""


def changed(data: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Returns a copy of nested lists and objects with one value replaced."""
    data = copies.deepcopy(data)
    _holder(data, path)[path[-1]] = value
    return data


def without(data: Any, path: tuple[Any, ...]) -> Any:
    """Returns a copy with one key removed."""
    data = copies.deepcopy(data)
    del _holder(data, path)[path[-1]]
    return data


def leaves(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields path and value of all nested values except objects and lists; of each list only the first element."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, list) and data:
        yield from leaves(data[0], (*path, 0))
    else:
        yield path, data


def wrong_type(value: Any, rng: Random) -> Any:
    """Returns a value of a type that cannot be read as that of the given value."""
    if isinstance(value, str):
        return rng.choice([7, ["text"], {"text": 1}, 0.5])
    return rng.choice(["much", ["much"], {"much": 1}, "\u001b[31mred"])


def dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(part) for part in path)


def edited_json(change: Callable[[Any], Any]) -> Damage:
    """Returns a damage to a JSON file that keeps it valid JSON (or Python's extension, NaN included)."""

    def damage(path: Path) -> None:
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return damage


def _holder(data: Any, path: tuple[Any, ...]) -> Any:
    for part in path[:-1]:
        data = data[part]
    return data
