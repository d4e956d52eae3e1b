"""Reader of small files that other programs or people wrote: their size is limited, and each mistake is one line."""

from __future__ import annotations

import glob
import json
import math
import os
import re
import stat
from os import PathLike
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError

File = str | PathLike[str]
"""Path of a file or a folder, as programs may give it."""
MOST_BYTES = 50_000_000
"""Largest size of a JSON file; a run of thousands of iterations has a `state.json` of a few million bytes."""
KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a pipe",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
    stat.S_ISSOCK: "a socket",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")


def check_regular(path: Path, hint: str = "") -> None:
    """Raises UserError unless the path is a regular file, which can be read to its end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise UserError(_with_hint(f"{path}: {error.strerror}", hint)) from None
    except ValueError:
        raise UserError(_with_hint(f"{path}: no name of a file", hint)) from None
    for is_kind, what in KINDS.items():
        if is_kind(mode):
            raise UserError(_with_hint(f"{path}: {what}, not a file", hint))


def check_is_no_pattern(path: Path) -> None:
    """Raises UserError if a path is a pattern, for which SGLang and verl would find other files."""
    if glob.has_magic(whole := str(path.resolve())):
        raise UserError(f"{whole}: has one of * ? [ in it, which SGLang and verl read as a pattern; rename the folder")


def read_small_text(path: Path, most: int = MOST_BYTES, hint: str = "") -> str:
    """Returns the text of a file of at most `most` bytes, without a byte order mark.

    Raises:
        UserError: The file is missing, not a regular file, too large, or not UTF-8 text.
    """
    check_regular(path, hint)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # some files below /proc are regular and yet wait
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise UserError(_with_hint(f"{path}: {error.strerror}", hint)) from None
    if len(data) > most:
        raise UserError(_with_hint(f"{path}: larger than {most:,} bytes", hint))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(_with_hint(f"{path}:{line}: not UTF-8 text", hint)) from None
    found = _CONTROL.search(text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise UserError(_with_hint(f"{path}:{line}: holds the control character U+{ord(found[0]):04X}", hint))
    return text


def read_json(path: Path, hint: str = "") -> Any:
    """Returns the value in a JSON file.

    Raises:
        UserError: The file is missing or not JSON, or holds NaN or an infinite number.
    """
    text = read_small_text(path, hint=hint)
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise UserError(_with_hint(f"{path}:{error.lineno}: not JSON: {error.msg}", hint)) from None
    except ValueError as error:
        raise UserError(_with_hint(f"{path}: not JSON: {error}", hint)) from None


def read_object(path: Path, writer: str, *keys: str) -> dict[str, Any]:
    """Returns the JSON object in a file, after checking that it has these keys.

    Raises:
        UserError: The file holds no such object; the message names `writer`, the command that writes the file.
    """
    hint = f"`{writer}` writes this file; restore it, or use another folder"
    data = read_json(path, hint)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected a JSON object; {hint}")
    missing = [key for key in keys if key not in data]
    if missing:
        raise UserError(f"{path}: field '{missing[0]}' is missing; {hint}")
    return dict(data)


def parse_json(text: str | bytes) -> Any:
    """Returns a JSON value without NaN, infinite numbers and endless nesting.

    Raises:
        ValueError: The text holds no such value; a `JSONDecodeError` if the text is not JSON.
    """
    try:
        return json.loads(text, parse_constant=_refused, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deep") from None
    except json.JSONDecodeError:
        raise
    except ValueError as error:  # also text that is no UTF-8, and integers of thousands of digits
        raise ValueError(" ".join(str(error).split())) from None


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number is too large")
    return number


def _with_hint(message: str, hint: str) -> str:
    return f"{message}; {hint}" if hint else message
