"""Writer of docs/options.md: every configuration key with its option, values, default and meaning.

`make docs` rewrites the file: python -m selfplay_pipeline.cli.reference FILE
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from selfplay_pipeline.cli import app
from selfplay_pipeline.command_parts.options import Configured
from selfplay_pipeline.config.fields import Key, keys, sections, used_by, value_of
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.used_keys import CONFIGURED
from selfplay_pipeline.core.sections import Section, UsedBy
from selfplay_pipeline.games.registry import shipped_games

HEAD = """# Options and keys

Look here for each key of a configuration: a YAML file for `--config`, or `--set KEY=VALUE`. The named commands have an
option for the key. "Used by" names the commands that use a key, and in brackets those that [refuse
it](configuration.md#keys-that-a-command-does-not-use). Defaults are those of the
built-in configuration `default`, which is used with several GPUs. If `tiny_honest`, which is used without a GPU, has
another default, it is named. `selfplay config` prints all keys with the values that would be used here.

`make docs` writes this page from the fields of the configuration.
"""
COLUMNS = ("Key", "Option", "Used by", "Values", "Default", "Meaning")


def page() -> str:
    """Returns the page in Markdown."""
    return "\n".join([HEAD, *_tables()])


@cache
def commands() -> dict[str, Configured]:
    """Returns the commands with configuration options, by name."""
    root: Any = typer.main.get_command(app)
    return {name: command for name, command in _all_commands(root) if isinstance(command, Configured)}


def _all_commands(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _all_commands(command, f"{above}{name} ")
        else:
            yield above + name, command


def _tables() -> Iterator[str]:
    outside = [key for key in keys(Config) if not key.section]
    usual, tiny = load_config("default", {}, gpus=1), load_config("tiny_honest", {})
    yield from _table("Outside all sections", "", outside, None, None)
    for name, field in Config.model_fields.items():
        kinds = _game_sections() if name == "game" else sections(field.annotation)
        for section in kinds:
            which = f" with `name: {section.model_fields['name'].default}`" if len(kinds) > 1 else ""
            both = [config if isinstance(getattr(config, name), section) else None for config in (usual, tiny)]
            users = f"Used by {_commands(mark)}." if (mark := used_by(field)) else "Used by all commands."
            words = f"{_words(section)}\n\n{users}"
            yield from _table(f"Section `{name}`{which}", words, list(keys(section, f"{name}.")), *both)


def _game_sections() -> list[type[Section]]:
    """Returns the section `game` of each game that comes with the package."""
    return sorted((game.settings for game in shipped_games()), key=lambda kind: kind.__name__)


def _table(title: str, words: str, rows: list[Key], usual: Config | None, tiny: Config | None) -> Iterator[str]:
    yield f"## {title}\n"
    if words:
        yield f"{words}\n"
    yield _row(COLUMNS)
    yield _row(["---"] * len(COLUMNS))
    for key in rows:
        name, default = f"`{key.name.rpartition('.')[2]}`", _default(key, usual, tiny)
        yield _row([name, _option(key), _used_by(key), key.values, default, key.text])
    yield ""


def _row(cells: Any) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"


def _words(section: type[Section]) -> str:
    return " ".join((inspect.getdoc(section) or "").split())


def _option(key: Key) -> str:
    taken = [
        name for name, command in commands().items() if any(key.name == given.name for given in command.keys.values())
    ]
    return f"`{key.option}`: {', '.join(taken)}" if taken else ""


def _used_by(key: Key) -> str:
    if key.used is None:
        return ""
    refused = f" (refused by {', '.join(sorted(key.used.refused_by))})" * bool(key.used.refused_by)
    return _commands(key.used) + refused


def _commands(mark: UsedBy) -> str:
    return ", ".join(sorted(mark.commands, key=[*CONFIGURED, *sorted(mark.commands)].index))


def _default(key: Key, usual: Config | None, tiny: Config | None) -> str:
    default = key.field.get_default(call_default_factory=True)
    in_usual, in_tiny = (default if config is None else value_of(config, key.name) for config in (usual, tiny))
    return _shown(in_usual) + (f" (tiny_honest: {_shown(in_tiny) or 'none'})" if in_tiny != in_usual else "")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None or value == [] else ", ".join(map(str, value)) if isinstance(value, list) else str(value)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
