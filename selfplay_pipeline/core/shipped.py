"""Paths of the files that come with the package, in whatever folder a command is given.

The files lie in the games' folders: built-in configurations in `configs`; tiny models and episodes of people in `data`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
GAMES = PACKAGE / "games"


def built_in() -> dict[str, Path]:
    """The built-in configurations of all games, by name."""
    return {path.stem: path for path in sorted(GAMES.glob("*/configs/*.yaml"), key=lambda path: path.stem)}


def as_listed(path: str) -> str:
    """What `shipped` made of a path below `data/`, as it was given."""
    inside = Path(path).relative_to(PACKAGE).parts if Path(path).is_relative_to(PACKAGE) else ()
    return str(Path(*inside[inside.index("data") :])) if "data" in inside else path


def shipped(name: str) -> str:
    """Returns the package's path for a `data/` name that leads nowhere from here, else the name itself."""
    top, *below = Path(name).parts or ("",)
    with suppress(OSError):  # of a name that is too long, say, which is told elsewhere
        if top == "data" and below and ".." not in below and not Path(name).exists():
            found = (folder.joinpath(*below) for folder in sorted(GAMES.glob("*/data")))
            return next((str(path) for path in found if path.exists()), name)
    return name
