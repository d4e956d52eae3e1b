"""Files that are whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from selfplay_pipeline.errors import UserError

Model = TypeVar("Model", bound=BaseModel)


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name, then rename.

    A file that holds just this text is left alone, so that a command with nothing to do changes nothing.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """The same for bytes.

    Raises:
        UserError: the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); give another place or mend it") from None


def write_json(path: Path, data: Any) -> None:
    """Write JSON, indented, under a temporary name, then rename."""
    write_text(path, json.dumps(data, indent=2) + "\n")


def write_lines(path: Path, lines: Iterable[Any]) -> None:
    """Write JSON, one value a line, under a temporary name, then rename."""
    write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def read_json(path: Path) -> Any:
    """Read JSON.

    Raises:
        UserError: the file is missing or not JSON.
    """
    try:
        return json.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not JSON: not even text") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{path}:{error.lineno}: not JSON: {error.msg}") from None


def read_model(path: Path, kind: type[Model], writer: str) -> Model:
    """Read JSON as a pydantic model.

    Raises:
        UserError: the file is missing, not JSON or not of this kind; names `writer`, the command that writes it.
    """
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error)}; `{writer}` writes this file") from None


def explain(error: ValidationError) -> str:
    """The first thing that is wrong, and in which field."""
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"])
    return f"field '{field}': {first['msg']}" if field else str(first["msg"])


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold `path` for one process at a time; the lock ends with the process, however it ends.

    Raises:
        UserError: another process holds it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"{what} is in use by another process (lock {path}); wait for it or use another folder"
        ) from None
