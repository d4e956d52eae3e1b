"""Identity of a run: the settings that decide its results, and their comparison when the run is continued."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from string import digits
from typing import Any

from pydantic import ValidationError

from selfplay_pipeline.config.fields import keys, used_by
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainOptions
from selfplay_pipeline.config.used_keys import TRAINING
from selfplay_pipeline.core.content_hash import file_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Section, UsedBy
from selfplay_pipeline.core.shipped import as_listed
from selfplay_pipeline.games.base import GameSettings
from selfplay_pipeline.games.registry import check_as_imported

KNOWN = frozenset(key.name for key in keys(Config))
"""All keys of the configuration, except those that only some games have."""
MAY_CHANGE = frozenset({
    # Servers and GPUs: how fast episodes are played and rows are trained on, not which.
    "engine.server_url", "engine.data_parallel", "engine.memory_fraction", "engine.hang_timeout",
    "engine.extra_args", "generate.max_concurrency",
    "train.micro_batch_size", "train.max_tokens_per_pass", "train.offload", "train.ray_address",
    "iterate.keep_processes", "plays_meanwhile", "shares_gpu",
    # How long a run lasts, and what it shows and stores besides.
    "iterate.num_iterations", "iterate.evaluate_every", "evaluate.swap_messages",
    "train.save_every", "iterate.state_every", "saves_state", "train.loggers", "output", "games", "sampled_by",
    "any_model",
    # The partner's section counts only if `chat` plays: `partner_arguments` stores its other keys and its endpoint.
    "partner", "partner.base_url", "partner.timeout", "partner.max_concurrency", "partner.max_dollars",
    "partner.cache", "partner.prices",
    # The contents of the file are compared in place of its path.
    "reward.path",
})  # fmt: skip
"""Keys of the configuration, and fields of trainings, that may change in a continued run."""
MAY_CHANGE_UNLESS = {
    "device": TRAINING, "engine.kind": ("generate", "evaluate"), "engine.tensor_parallel": ("train-online",),
    "evaluate.state_seed": ("iterate",),
}  # fmt: skip
"""Keys that may change in a continued run, except of these commands."""
STORED_AS = {
    "context_length": "engine.context_length",
    "tensor_parallel": "engine.tensor_parallel",
    **{name: f"train.{name}" for name in TrainOptions.model_fields},
}
"""Keys of the configuration that are fields of a training itself."""
BEFORE = {"generate.history": "appended"}
"""Values that runs had before a key existed, where they are not its default."""
HASHED = re.compile(r"(^|\.)weights(\.|$)|^rows$")
"""Pattern of record keys that hold content hashes of models or rows."""
CONTENTS = "contents of "
"""Prefix of record keys for hashes of contents. A message names such a key only if no other key differs."""
PLACE = "game.path"
"""Key with the place of a game's file, which may move; it is stored, but not compared."""
MOST_DIFFERENCES = 5
"""Largest number of differences in one message."""
LONGEST_VALUE = 100
"""Largest number of characters of a value in a message."""


def deciding(section: Section, command: str, above: str = "", used: UsedBy | None = None) -> dict[str, Any]:
    """Returns the settings that a continued run of a command must have again: their JSON values by key.

    These are all settings that the command uses, except those that may change. Files with code of a game are in it too,
    each with the hash of its contents.

    Args:
        command: `generate`, `convert`, `imitate`, `train`, `train-online`, `iterate`, or `evaluate`, which also stands
            for the pairs of `crossplay`.
        above: Name of the section, with a dot at its end.
        used: Mark of the section.
    """
    found, values = dict[str, Any](), section.model_dump(mode="json")
    if isinstance(section, GameSettings):
        found |= contents_of_game(section)
    for name, field in type(section).model_fields.items():
        value, mark, key = getattr(section, name), used_by(field) or used, STORED_AS.get(above + name, above + name)
        if key in MAY_CHANGE or command not in MAY_CHANGE_UNLESS.get(key, (command,)):
            continue
        if isinstance(value, Section):
            found |= deciding(value, command, f"{key}.", mark)
        elif name in values and (mark is None or command in mark.commands):
            found[key] = values[name]
    return found


def contents(file: str, key: str) -> str:
    """Returns the content hash of a file that a key of the configuration names.

    Raises:
        UserError: The file does not exist, or it is code and has changed since it was imported.
    """
    if not Path(file).is_file():
        raise UserError(f"{key} {file}: there is no such file; name another one")
    found = file_hash(Path(file))
    check_as_imported(os.path.realpath(file), found)
    return found


def section(record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the keys of one section of the configuration in stored arguments, without the section's name."""
    start = f"{name}."
    return {key.removeprefix(start): value for key, value in record.items() if key.startswith(start)}


def contents_of_game(game: GameSettings) -> dict[str, str]:
    """Returns the content hashes of a user's files that decide how a game is played, by their keys in records.

    Raises:
        UserError: A file does not exist.
    """
    return {f"{CONTENTS}game.{key}": contents(file, f"game.{key}") for key, file in game.code().items()}


class BegunOtherwiseError(UserError):
    """A run was begun with other values than those of the command that is to continue it."""

    def __init__(self, place: Path, listed: Mapping[str, tuple[Any, Any]]) -> None:
        self.place, self.listed = place, listed
        super().__init__(self.naming({}))

    def naming(self, options: Mapping[str, str]) -> str:
        """Returns the message, with the option that sets each value."""
        value, listed = "value" if len(self.listed) == 1 else "values", in_words(self.listed, options)
        return f"{self.place} was begun with {listed}; give the earlier {value}, or another --output"


def check_same(place: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Checks that a run may be continued.

    Args:
        place: File or folder of the run.
        before: Deciding values when the run began.
        now: Deciding values now.

    Raises:
        BegunOtherwiseError: The values differ.
    """
    listed = differences(before, now)
    if listed:
        listed = {key: values for key, values in listed.items() if not key.startswith(CONTENTS)} or listed
        raise BegunOtherwiseError(place, listed)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Returns the keys in which the records of two runs differ, each with both values.

    A key that `before` lacks, because it is newer, counts there with its default value. A key of the configuration that
    `now` lacks is not compared.
    """
    then, today = _named(dict(before)), _named(dict(now))
    then = _defaults(then) | then
    compared = {key for key in then if not _is_key(key)} | today.keys()
    values = {key: (then.get(key), today.get(key)) for key in sorted(compared)}
    return {
        key: (one, other)
        for key, (one, other) in values.items()
        if not _equal(one, other) and key != PLACE and not _unknown(key, one, other)
    }


def _equal(one: Any, other: Any) -> bool:
    """Whether two values are equal. In a mapping of any values, `true` is not 1: a chat template writes them apart."""
    return bool(
        one == other
        and (not isinstance(one, dict) or json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))
    )


def _unknown(key: str, one: Any, other: Any) -> bool:
    """Whether a content hash is unknown, as for a hub model on an attached server; then names are compared."""
    return HASHED.search(key) is not None and "" in (one, other)


def in_words(differences: Mapping[str, tuple[Any, Any]], options: Mapping[str, str] = {}) -> str:
    """Returns one line with the first differences and the number of further ones.

    Args:
        options: Command-line options to mention, by key.
    """
    said = [_in_words(key, *values, options) for key, values in list(differences.items())[:MOST_DIFFERENCES]]
    more = len(differences) - len(said)
    return "; ".join([*said, *([f"{more} more"] if more else [])])


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns a mapping without nesting: keys are joined by dots. A mapping that is one key's value stays whole."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and prefix + key not in KNOWN:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def portable(record: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Returns a record that stays true when its run folder is moved or copied.

    Paths inside the run folder become relative to it; packaged files get the `data/` names that the documents use.

    Args:
        place: File or folder of the record. The run folder is the nearest folder with a manifest, else `place` itself.
    """
    own = Path(os.path.realpath(place))
    top = next((folder for folder in (own, *own.parents[:3]) if (folder / "manifest.json").exists()), own)

    def inside(value: Any) -> Any:
        if not isinstance(value, str) or os.sep not in value:
            return value
        found = Path(os.path.realpath(value))
        return str(found.relative_to(top)) if found.is_relative_to(top) else as_listed(value)

    return {key: inside(value) for key, value in record.items()}


def _is_key(name: str) -> bool:
    """Whether a name is a key of the configuration, or may be a key of a game."""
    return name in KNOWN or name.startswith("game.")


def _named(value: Any) -> Any:
    """Returns a value with the machine-independent `data/` names of packaged paths, also in lists and mappings."""
    if isinstance(value, list):
        return [_named(one) for one in value]
    if isinstance(value, dict):
        return {key: _named(one) for key, one in value.items()}
    return as_listed(value) if isinstance(value, str) else value


def _defaults(found: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all keys of a configuration with these values, and with defaults for other keys.

    The result is empty if `found` has no key of the configuration, or a value that is no longer valid.
    """
    nested: dict[str, Any] = {}
    found = BEFORE | dict(found) if any(map(_is_key, found)) else {}
    for key in filter(_is_key, found):
        section, _, name = key.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[name] = found[key]
    try:
        return flatten(Config.model_validate(nested).model_dump(mode="json")) if nested else {}
    except ValidationError:
        return {}


def _in_words(key: str, then: Any, now: Any, options: Mapping[str, str]) -> str:
    if key.startswith(CONTENTS) and None in (then, now):
        name = key.removeprefix(CONTENTS)
        named = name + (f" (option {options[name]})" if name in options else "")
        return f"no file as {named}, now one is given" if then is None else f"a file as {named}, now none is given"
    option = options.get(key) or options.get(key.rstrip(digits))  # `--player` gives player0, player1, …
    is_hash = HASHED.search(key) or key.startswith(CONTENTS)
    note = f" (option {option})" if option else " (content hash)" if is_hash else ""
    return f"{key} = {_short(then)}, now it is {_short(now)}{note}"


def _short(value: Any) -> str:
    text = repr(value) if value is not None else "not given"
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 1] + "…"
