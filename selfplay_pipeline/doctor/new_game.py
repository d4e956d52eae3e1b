"""Writes the file of a new game, a small one that can be played at once, and its test."""

from __future__ import annotations

import keyword
import re
import sys
from importlib.metadata import packages_distributions
from importlib.resources import files
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.games.registry import SHIPPED

TEMPLATE = "new_game.txt"


def new_game(name: str, folder: Path) -> list[Path]:
    """Write `NAME.py` and `test_NAME.py` into a folder, and return their paths.

    Args:
        name: Name of the game, in lower case.
        folder: The folder.

    Raises:
        UserError: The name cannot be a game's, or a file exists already.
    """
    if why := _refusal(name):
        raise UserError(f"game new: {name!r} cannot be the name of a new game, because {why}; choose another")
    made = {folder / f"{name}.py": TEMPLATE, folder / f"test_{name}.py": "new_game_test.txt"}
    for path in made:
        if path.exists():
            raise UserError(f"{path}: exists already; choose another name, or another --output")
    for path, template in made.items():
        text = (files(__package__) / template).read_text(encoding="utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text.replace("NAME", name).replace("CLASS", _class_of(name)))
    return [*made]


def _class_of(name: str) -> str:
    return name.title().replace("_", "")


def _refusal(name: str) -> str:
    """Returns the reason why a game cannot have a name; "" if it can."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        return "it must be lower-case letters, digits and _"
    if name in SHIPPED:
        return "a game of the package has it"
    template = (files(__package__) / TEMPLATE).read_text(encoding="utf-8")
    needed = " ".join(re.findall(r"^(?:from|import|class) .*|^\w+ =", template, re.MULTILINE))
    if _class_of(name) in re.findall(r"\w+", needed):
        return f"its class {_class_of(name)} would take the place of another one that it needs"
    if keyword.iskeyword(_class_of(name)):
        return f"its class {_class_of(name)} would be a word of Python"
    # Beside the game's file, Python would import it in place of its own module, and no test could run.
    if name in sys.stdlib_module_names:
        return "a module of Python has it"
    return "an installed package has it" if name in packages_distributions() else ""
