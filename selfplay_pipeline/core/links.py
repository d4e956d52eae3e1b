"""Protection against links in an output folder, which another user may have made: no command writes through a link.

The output folder itself may be a link, because the user has named it.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO, cast

from selfplay_pipeline.core.errors import UserError

OF_OTHERS = {"wandb"}
"""Folders whose content is not checked: Weights & Biases makes links there, and writes to files with new names."""


def check_links(folder: Path) -> None:
    """Raises UserError if a link in a folder, or in a folder below, leads out of it."""
    top = os.path.realpath(folder)
    for place, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = os.path.join(place, name)  # noqa: PTH118  a Path for each file takes much longer
            if os.path.islink(path) and os.path.commonpath((top, os.path.realpath(path))) != top:  # noqa: PTH114
                link = folder / os.path.relpath(path, top)
                raise UserError(
                    f"{link}: is a link that leads out of {folder}, to {os.path.realpath(path)}; a command writes only "
                    "inside its output folder: remove the link, or give another --output"
                )
        folders[:] = set(folders) - OF_OTHERS


def append_to(path: Path) -> IO[bytes]:
    """Opens a file to append to it, without a buffer.

    Raises:
        UserError: The file is a link.
    """
    return open_itself(path, "ab")


def open_itself(path: Path, mode: str) -> IO[bytes]:
    """Opens a file in a binary mode, without a buffer.

    Raises:
        UserError: The file is a link.
    """
    try:
        return cast(IO[bytes], open(path, mode, buffering=0, opener=_without_links))
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UserError(
            f"{path}: is a link, and nothing is written through links; remove it, or name another file"
        ) from None


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)
