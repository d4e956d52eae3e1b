"""The tiny models and the human games, which come with the package, wherever a command is given."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "data"
"""A checkout shows what lies in it under `data/` too."""


def as_listed(path: str) -> str:
    """What `shipped` made of a path below `data/`, as it was given."""
    return str("data" / Path(path).relative_to(FOLDER)) if Path(path).is_relative_to(FOLDER) else path


def shipped(name: str) -> str:
    """A path such as `data/tiny_model` as it is where it leads to something from here, else that of the package."""
    top, *below = Path(name).parts or ("",)
    with suppress(OSError):  # of a name that is too long, say, which is told elsewhere
        if top == "data" and ".." not in below and not Path(name).exists() and FOLDER.joinpath(*below).exists():
            return str(FOLDER.joinpath(*below))
    return name
