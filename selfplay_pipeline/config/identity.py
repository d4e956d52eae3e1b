"""What makes two runs the same run: the fields of the configuration that decide it, and the one comparison.

Each command stores what decides its run when it begins, and compares it when it is given again. A field decides for the
commands that use it (its mark `UsedBy`), unless its mark `Identity` names fewer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import digits
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from selfplay_pipeline.config.fields import keys, used_by
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.command_line import options
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Identity, Section, UsedBy
from selfplay_pipeline.core.shipped import as_listed

KNOWN = frozenset(key.name for key in keys(Config))
"""All keys of the configuration, but for those that only some games have."""
PLAYED = {
    "model": "policy.checkpoint", "engine.kind": "policy.engine", "engine.context_length": "context_length",
    "generate.num_episodes": "num_groups", "generate.episodes_per_state": "episodes_per_state",
    "generate.temperature": "policy.temperature", "generate.max_new_tokens": "policy.max_new_tokens",
    "generate.thinking": "policy.thinking",
}  # fmt: skip
"""Names under which records of played episodes hold keys of the configuration; other keys have their own."""
TRAINED = {
    "temperature": "generate.temperature", "max_new_tokens": "generate.max_new_tokens",
    "thinking": "generate.thinking", "tensor_parallel": "engine.tensor_parallel",
    **{key.removeprefix("train."): key for key in KNOWN if key.startswith("train.")},
}  # fmt: skip
"""The keys of the configuration by the names that records of trainings have for them."""
KEYS = {stored: key for key, stored in PLAYED.items()} | TRAINED
HASHED = re.compile(r"(^|\.)weights(\.|$)|^rows$")
"""Matches keys of records that hold content hashes of models or rows."""
CONTENTS = "contents of "
"""Keys of records that hold a hash of contents begin so; messages name them only where nothing else differs."""
MOST_DIFFERENCES = 5
"""The most differences that a message lists."""
LONGEST_VALUE = 100
"""Characters of a value that a message shows."""


def deciding(section: Section, command: str, above: str = "", used: UsedBy | None = None) -> dict[str, Any]:
    """The values, as JSON holds them, of all fields that decide the runs of a command, by their dotted keys.

    Args:
        above: the section's own name, with a dot.
        used: the section's own mark.
    """
    found, values = dict[str, Any](), section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value, mark = getattr(section, name), used_by(field) or used
        if not _decides(field, command):
            continue
        if isinstance(value, Section):
            found |= deciding(value, command, f"{above}{name}.", mark)
        elif mark is None or command in mark.commands:
            found[above + name] = values[name]
    return found


def check_same(place: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Whether a run may be continued.

    Args:
        place: the run's file or folder.
        before: what decided it when it began.
        now: what decides it now.

    Raises:
        UserError: the two differ.
    """
    listed = differences(before, now)
    if listed:
        listed = {key: values for key, values in listed.items() if not key.startswith(CONTENTS)} or listed
        value = "value" if len(listed) == 1 else "values"
        raise UserError(f"{place} was begun with {in_words(listed)}; give the earlier {value}, or another --output")


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The keys of the configuration, or else of the records, in which two runs differ, each with both values.

    A key that has come since `before` was stored has its default there. Keys of the configuration that do not decide
    `now` are left out.
    """
    then, today = _by_keys(before), _by_keys(now)
    then, today = _anywhere(then), _anywhere(today)
    then = _defaults(then) | then
    compared = {key for key in then if not _is_key(key)} | today.keys()
    values = {key: (then.get(key), today.get(key)) for key in sorted(compared)}
    return {key: (one, other) for key, (one, other) in values.items() if one != other}


def in_words(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Some of the differences, in one line."""
    said = [_in_words(key, *values) for key, values in list(differences.items())[:MOST_DIFFERENCES]]
    more = len(differences) - len(said)
    return "; ".join([*said, *([f"{more} more"] if more else [])])


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def portable(record: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Returns a record that stays true when its run folder is moved or copied.

    Paths inside the run folder become relative to it; what comes with the package has the name that documents give it.

    Args:
        place: the file or folder of the record. The run folder is the nearest one above with a manifest, else `place`.
    """
    own = Path(os.path.realpath(place))
    top = next((folder for folder in (own, *own.parents[:3]) if (folder / "manifest.json").exists()), own)

    def inside(value: Any) -> Any:
        if not isinstance(value, str) or os.sep not in value:
            return value
        found = Path(os.path.realpath(value))
        return str(found.relative_to(top)) if found.is_relative_to(top) else as_listed(value)

    return {key: inside(value) for key, value in record.items()}


def _decides(field: FieldInfo, command: str) -> bool:
    marks = [mark for mark in field.metadata if isinstance(mark, Identity)]
    return all(command in mark.commands for mark in marks)


def _is_key(name: str) -> bool:
    """Whether this is a key of the configuration, or may be one of a game's."""
    return name in KNOWN or name.startswith("game.")


def _by_keys(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record by the keys of the configuration; a number of groups is given as that of the episodes in them."""
    groups, episodes = record.get("num_groups"), record.get("episodes_per_state")
    if isinstance(groups, int) and isinstance(episodes, int):
        record = {**record, "num_groups": groups * episodes}
    return {KEYS.get(name, name): value for name, value in record.items()}


def _anywhere(record: Mapping[str, Any]) -> dict[str, Any]:
    """What comes with the package by the same name wherever the package and the working directory are."""
    return {key: as_listed(value) if isinstance(value, str) else value for key, value in record.items()}


def _defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """All keys of a configuration that has these; empty if it has none, or if today there is no such configuration."""
    nested: dict[str, Any] = {}
    for key in filter(_is_key, found):
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = found[key]
    try:
        return flatten(Config.model_validate(nested).model_dump(mode="json")) if nested else {}
    except ValidationError:
        return {}


def _in_words(key: str, then: Any, now: Any) -> str:
    option = options.get(key) or options.get(key.rstrip(digits))  # `--player` gives player0, player1, …
    note = f" (option {option})" if option else " (content hash)" if HASHED.search(key) else ""
    return f"{key} = {_short(then)}, now it is {_short(now)}{note}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
