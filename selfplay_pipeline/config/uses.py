"""Which keys of the configuration a command uses, and which it refuses because they would have no effect on it."""

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
PLAYING = ("generate", "iterate", *MEASURING)
"""Commands that play with servers of their own."""
WORK: dict[str, tuple[str, ...]] = {
    "generate": ("engine", "generate"),
    "convert": ("convert",),
    "train": ("train",),
    "imitate": ("convert", "imitate", "train"),
    "iterate": ("engine", "generate", "convert", "train", "evaluate", "iterate"),
    "train-online": ("engine", "generate", "convert", "train", "evaluate", "iterate", "online"),
    **dict.fromkeys(MEASURING, ("engine", "generate", "evaluate")),
}
"""The sections whose work each command does; no key of another section concerns it."""
Standing = Literal["used", "replaced", "refused", "of no concern"]


def standing(key: Key, command: str) -> Standing:
    """Returns what a command does with a key; see `UsedBy`."""
    if key.used is None or command in key.used.commands:
        return "used"
    if key.section not in WORK.get(command, ()):
        return "of no concern"
    return "replaced" if command in key.used.instead else "refused"


def check_used(command: str, config: Section, file: YamlFile, given: Container[str]) -> None:
    """Checks that no key was set that should act on what a command does, but does not.

    Args:
        file: the file that the configuration was read from.
        given: keys that the command line gives.

    Raises:
        UserError: a key of the file would have no effect.
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
