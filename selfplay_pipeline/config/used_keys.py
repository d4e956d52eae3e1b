"""Keys of the configuration that a command uses, and keys that it refuses because they have no effect on it."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Literal

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
WORK: dict[str, tuple[str, ...]] = {
    "generate": ("engine", "generate"),
    "play": ("engine", "generate"),
    "convert": ("convert", "reward"),
    "train": ("train",),
    "imitate": ("convert", "imitate", "train"),
    "iterate": ("engine", "generate", "convert", "reward", "train", "evaluate", "iterate"),
    "train-online": ("engine", "generate", "convert", "reward", "train", "evaluate", "iterate", "online"),
    **dict.fromkeys(MEASURING, ("engine", "generate", "evaluate")),
    "benchmark": ("engine", "generate"),
}
"""Sections that configure the work of each command; a command ignores the keys of all other sections."""
Standing = Literal["used", "replaced", "refused", "of no concern"]


def standing(key: Key, command: str) -> Standing:
    """Returns how a command treats a key; see `UsedBy`."""
    if key.used is None or command in key.used.commands:
        return "used"
    if key.section not in WORK.get(command, ()):
        return "of no concern"
    return "replaced" if command in key.used.instead else "refused"


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
        if key.name in given and standing(key, command) != "used":
            assert key.used is not None
            users = listed([name for name in WORK if name in key.used.commands], "and")
            raise UserError(f"--set {key.name}: {command} does not use it, only {users} can; leave it out")


def check_used(command: str, config: Section, file: YamlFile, given: Container[str]) -> None:
    """Checks that each key that a file sets in the sections of the command (`WORK`) has an effect on the command.

    Args:
        file: File that the configuration was read from.
        given: Keys that the command line sets.

    Raises:
        UserError: A key of the file has no effect on the command.
    """
    for key in keys(type(config)):
        value, default = value_of(config, key.name), key.field.get_default(call_default_factory=True)
        if standing(key, command) == "refused" and value != default and key.name not in given:
            assert key.used is not None
            users = listed([name for name in WORK if name in key.used.commands], "and")
            usual = str(default).lower() if isinstance(default, bool) else default
            raise UserError(
                f"{file.where(key.name.split('.'))}: {command} does not use it, only {users} can; leave it out, or set "
                f"its default, {usual}"
            )
