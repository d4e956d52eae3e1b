"""Prompt text: jinja2 templates in a folder, one set per folder. A user's own folder replaces a game's built-in set."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.templates import PromptTemplate


@dataclass(frozen=True)
class Prompts:
    """One loaded set of templates."""

    templates: dict[str, PromptTemplate]

    def render(self, name: str, **values: Any) -> str:
        return self.templates[name].render(**values)


@cache
def load_prompts(built_in: Path, name_or_folder: str, names: tuple[str, ...]) -> Prompts:
    """Returns a built-in set by name, or the set in a folder.

    Args:
        built_in: Folder of the game's built-in sets.
        names: Names of a set's files, without their suffix `.j2`.

    Raises:
        UserError: No set has this name, or a file is missing or malformed.
    """
    builtin = built_in / name_or_folder
    folder = builtin if builtin.is_dir() else Path(name_or_folder)
    if not folder.is_dir():
        known = ", ".join(sorted(p.name for p in built_in.iterdir() if (p / "system.j2").exists()))
        raise UserError(f"game.prompts: no built-in set or folder {name_or_folder!r}; built-in sets: {known}")
    return Prompts({name: PromptTemplate(folder / f"{name}.j2", "game.prompts") for name in names})
