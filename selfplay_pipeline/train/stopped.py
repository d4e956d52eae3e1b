"""Why a training stopped, in one line, on its way from verl's processes to the command that started them."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path

ROOM = 4096
"""Bytes of the file for the reason. They are written beforehand, since the reason may be that the disk is full."""


class TrainingStopped(Exception):
    """Training must not go on; the message is one line that says why and what is left."""


def prepare_reason(path: Path) -> None:
    """Write a file of blanks, over which a reason can be written even if the disk is full."""
    from selfplay_pipeline.core.files import write_text

    write_text(path, " " * ROOM)


def leave_reason(path: Path, error: BaseException) -> None:
    """Write why training ended, over the room that was made for it."""
    with path.open("r+b") as file:
        file.write(one_line(error).encode()[:ROOM])


def take_reason(path: Path) -> str | None:
    """The reason that was left, if any; the file is gone then."""
    try:
        reason = path.read_text(encoding="utf-8", errors="ignore").strip()
    except OSError:
        return None
    path.unlink(missing_ok=True)
    return reason or None


def cause_of(error: BaseException) -> BaseException:
    """The error behind Ray's, which wraps an error once for each process that it passes through."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    return error


def one_line(error: BaseException) -> str:
    """An error as one line."""
    from selfplay_pipeline.core.errors import UserError

    error = cause_of(error)
    if isinstance(error, TrainingStopped | UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, pickle.UnpicklingError):
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        return (
            f"it asks for {asked[1]}, which may be code; it was not loaded" if asked else "it is no data of a training"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def no_space(error: BaseException) -> bool:
    """Whether a full disk is said to be the reason."""
    cause = cause_of(error)
    return getattr(cause, "errno", None) == errno.ENOSPC or "No space left on device" in str(cause)
