"""File through which verl's processes tell the command, in one line, why the training stopped."""

from __future__ import annotations

import errno
import pickle
import re
from pathlib import Path
from typing import NamedTuple

ROOM = 4096
"""Size in bytes of the file for the reason.

The file is filled with blanks in advance, since the disk may be full later.
"""


MISTAKE = "\0"
"""Mark in the file before a reason that the user can change."""


class Reason(NamedTuple):
    """Reason why the training stopped."""

    text: str
    of_user: bool
    """Whether it is a UserError: the data or the options are at fault, not the training."""


class TrainingStopped(Exception):
    """The training must not continue. The message is one line with the reason and the state of the files."""


def prepare_reason(path: Path) -> None:
    """Write a file of blanks, which can be overwritten by a reason even if the disk is full."""
    from selfplay_pipeline.core.files import write_text

    write_text(path, " " * ROOM)


def leave_reason(path: Path, error: BaseException) -> None:
    """Write the reason why training ended over the blanks of `prepare_reason`."""
    from selfplay_pipeline.core.errors import UserError

    mark = MISTAKE if isinstance(cause_of(error), UserError) else ""
    with path.open("r+b") as file:
        file.write((mark + one_line(error)).encode()[:ROOM])


def take_reason(path: Path) -> Reason | None:
    """Returns the reason that was left, if any, and deletes the file."""
    try:
        reason = path.read_text(encoding="utf-8", errors="ignore").strip(" ")
    except OSError:
        return None
    path.unlink(missing_ok=True)
    return Reason(reason.removeprefix(MISTAKE), reason.startswith(MISTAKE)) if reason else None


def cause_of(error: BaseException) -> BaseException:
    """Returns the original error; Ray wraps an error once for each process that it passes through."""
    while isinstance(cause := getattr(error, "cause", None), BaseException):
        error = cause
    return error


def one_line(error: BaseException) -> str:
    """Returns an error as one line."""
    from selfplay_pipeline.core.errors import UserError

    error = cause_of(error)
    if isinstance(error, TrainingStopped | UserError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, pickle.UnpicklingError):
        asked = re.search(r"GLOBAL ([\w.]+)", str(error))
        return (
            f"it asks for {asked[1]}, which may be code; it was not loaded"
            if asked
            else "it does not hold a training's data"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def no_space(error: BaseException) -> bool:
    """Whether the error says that a full disk is the reason."""
    cause = cause_of(error)
    return getattr(cause, "errno", None) == errno.ENOSPC or "No space left on device" in str(cause)
