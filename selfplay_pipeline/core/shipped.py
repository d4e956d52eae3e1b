"""Paths of packaged files, whatever the working directory is.

The files are in the games' folders: built-in configurations in `configs`; tiny models and episodes of people in `data`.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
GAMES = PACKAGE / "games"


def built_in() -> dict[str, Path]:
    """Returns the built-in configurations of all games, by name."""
    return {path.stem: path for path in sorted(GAMES.glob("*/configs/*.yaml"), key=lambda path: path.stem)}


def as_listed(path: str) -> str:
    """Returns the `data/` name of a packaged path, else the path itself; the inverse of `shipped`."""
    inside = Path(path).relative_to(PACKAGE).parts if Path(path).is_relative_to(PACKAGE) else ()
    return str(Path(*inside[inside.index("data") :])) if "data" in inside else path


def shipped(name: str) -> str:
    """Returns the packaged path for a `data/` name that does not exist in the working directory; else the name."""
    top, *below = Path(name).parts or ("",)
    with suppress(OSError):  # for example, the name is too long, which is reported elsewhere
        if top == "data" and below and ".." not in below and not Path(name).exists():
            found = (folder.joinpath(*below) for folder in sorted(GAMES.glob("*/data")))
            return next((str(path) for path in found if path.exists()), name)
    return name


def where_from(name: str) -> str:
    """Returns advice on a model that is not there: the command that makes the model of a built-in configuration."""
    for config, file in built_in().items():
        if f"model: {name}" in file.read_text("utf-8").splitlines():
            lesson = name.removeprefix("data/smollm2_")
            tiny = f"tiny --config {config} --output {name}"
            return f"`selfplay model {tiny if lesson == name else f'smollm2 --lesson {lesson}'}` makes it"
    return ""
