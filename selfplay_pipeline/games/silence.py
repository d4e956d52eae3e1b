"""The silence line of a game: the expected reward of the best play without messages, stored for each configuration.

Lines of built-in configurations come with the games, in `games/NAME/silence.json`; `selfplay silence` writes those of
others to `data/silence.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from selfplay_pipeline.core.files import read_model

if TYPE_CHECKING:
    from selfplay_pipeline.games.base import GameSettings

STORED = Path("data/silence.json")
"""Where lines of users' configurations are."""
WITHOUT_EFFECT = frozenset({"max_length", "max_errors", "mute", "prompts"})
"""Settings that change neither the states nor what a proposal is worth."""


class Silence(BaseModel):
    """The line.

    Attributes:
        value: mean reward of all seats over the states.
        standard_error: of the mean.
        states: how many were sampled.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    standard_error: float
    states: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.standard_error:.3f} (standard error, {self.states:,} states)"


class StoredLine(BaseModel):
    """A line, and the game's settings that it belongs to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    game: dict[str, Any]
    silence: Silence

    def is_of(self, config: GameSettings) -> bool:
        """Whether it is the line of this configuration; settings that it was stored without count as their defaults.

        Settings that are none, such as those of another version, belong to no configuration.
        """
        if self.game.get("name") != config.name:
            return False
        try:
            return settings_of(type(config).model_validate(self.game)) == settings_of(config)
        except ValidationError:
            return False


class StoredLines(BaseModel):
    """A file of lines, each of other settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lines: tuple[StoredLine, ...] = ()

    @classmethod
    def read(cls, path: Path) -> StoredLines:
        """The lines of a file; none if it is not there.

        Raises:
            UserError: it is something else.
        """
        return read_model(path, cls, "selfplay silence") if path.exists() else cls()


def settings_of(config: GameSettings) -> dict[str, Any]:
    """What a line depends on."""
    return config.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))


def known_silence(config: GameSettings, folder: Path) -> Silence | None:
    """The stored line of a configuration, the user's own before the one that comes with the game; None without one.

    Args:
        folder: the game's own.

    Raises:
        UserError: `data/silence.json` cannot be read.
    """
    files = (STORED, folder / "silence.json")
    lines = (line.silence for file in files for line in StoredLines.read(file).lines if line.is_of(config))
    return next(lines, None)
