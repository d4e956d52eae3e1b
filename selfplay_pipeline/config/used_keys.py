"""Checks that a command uses the keys of the configuration that it is given."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING

from selfplay_pipeline.config.fields import Key, keys, listed, value_of
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.sections import Section

if TYPE_CHECKING:
    from selfplay_pipeline.config.yaml_file import YamlFile

MEASURING = ("evaluate", "crossplay", "listen")
"""Commands that measure how well players play."""
PLAYING = ("generate", "play", "iterate", *MEASURING, "benchmark")
"""Commands that play with servers of their own."""
TRAINING = ("train", "imitate", "iterate", "train-online")
"""Commands that train."""
CONFIGURED = ("generate", "play", "convert", "train", "imitate", "iterate", "train-online", *MEASURING, "benchmark")
"""Commands that a message names as users of a key, in its order."""


def check_set(command: str, config: Section, given: Container[str]) -> None:
    """Checks that the command uses each key that --set names; `doctor` and `config` show all keys.

    Args:
        given: Keys that --set names.

    Raises:
        UserError: The command does not use a key.
    """
    if command in ("", "doctor", "config"):
        return
    for key in keys(type(config)):
        if key.name in given and not key.is_used_by(command):
            raise UserError(f"--set {key.name}: {command} does not use it, only {_users(key)} can; leave it out")


def check_used(command: str, config: Section, file: YamlFile, given: Container[str]) -> None:
    """Checks that a file sets no key that the command refuses (`UsedBy.refused_by`) to another value than its default.

    Args:
        file: File that the configuration was read from.
        given: Keys that the command line sets.

    Raises:
        UserError: A key of the file has no effect on the command.
    """
    for key in keys(type(config)):
        value, default = value_of(config, key.name), key.field.get_default(call_default_factory=True)
        refused = key.used is not None and command in key.used.refused_by
        if refused and value != default and key.name not in given:
            usual = str(default).lower() if isinstance(default, bool) else default
            raise UserError(
                f"{file.where(key.name.split('.'))}: {command} does not use it, only {_users(key)} can; leave it out, "
                f"or set its default, {usual}"
            )


def _users(key: Key) -> str:
    """Returns the commands that use a key, in words."""
    return listed([name for name in CONFIGURED if key.is_used_by(name)], "and")
