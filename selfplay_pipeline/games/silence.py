"""Silence line of a game: the expected reward of one unheard proposal, stored for each configuration.

The lines of built-in configurations come with the games, in `games/NAME/silence.json`; `selfplay silence` writes those
of other configurations to `data/silence.json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from selfplay_pipeline.core.files import read_model

if TYPE_CHECKING:
    from selfplay_pipeline.games.base import GameSettings

STORED = Path("data/silence.json")
"""File with the lines of users' configurations."""
WITHOUT_EFFECT = frozenset({"max_length", "max_errors", "mute", "prompts", "protocol", "messages"})
"""Settings that change neither the states nor the value of a proposal."""


class Silence(BaseModel):
    """Silence line of one configuration.

    Attributes:
        value: Mean reward of all seats over the states.
        standard_error: Standard error of the mean.
        states: Number of sampled states.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    standard_error: float
    states: int

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.standard_error:.3f} (standard error, {self.states:,} states)"


class StoredLine(BaseModel):
    """Silence line, with the settings of its game."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    game: dict[str, Any]
    silence: Silence

    def is_of(self, config: GameSettings) -> bool:
        """Whether the line belongs to this configuration.

        Settings that are missing in the file count as their defaults. Settings that cannot be read, such as those of
        another version, belong to no configuration.
        """
        if self.game.get("name") != config.name:
            return False
        try:
            return settings_of(type(config).model_validate(self.game)) == settings_of(config)
        except ValidationError:
            return False


class StoredLines(BaseModel):
    """File of silence lines, each for other settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lines: tuple[StoredLine, ...] = ()

    @classmethod
    def read(cls, path: Path) -> StoredLines:
        """Returns the lines of a file; empty if the file does not exist.

        Raises:
            UserError: The file has other content.
        """
        return read_model(path, cls, "selfplay silence") if path.exists() else cls()


def settings_of(config: GameSettings) -> dict[str, Any]:
    """Returns the settings on which a line depends."""
    return config.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))


def known_silence(config: GameSettings, folder: Path) -> Silence | None:
    """Returns the stored line of a configuration, or None. The user's file takes precedence over the game's.

    Args:
        folder: Folder of the game.

    Raises:
        UserError: A file of lines, such as `data/silence.json`, cannot be read.
    """
    files = (STORED, folder / "silence.json")
    lines = (line.silence for file in files for line in StoredLines.read(file).lines if line.is_of(config))
    return next(lines, None)
