"""Lines of play without words: for each configuration, the expected rewards of strategies whose messages say nothing.

- `silence`: one fixed proposer makes one proposal by its own view and the rules, which is accepted.
- `pass`: the first player makes such a proposal if it promises at least a threshold, else it passes with an empty
  message, and the second player proposes. The promise is the expected reward of the proposal; the threshold is the one
  with the highest expected reward.
- `counter`: the first player proposes by its own view. The second infers the first player's view from the proposal. It
accepts the proposal, or rejects it and proposes another one from which it expects more.

In the fixed protocol no play without the content of messages exceeds `silence` (see `tagged_session.py`), and the other
two plays are illegal. In free play none of the lines is a bound: each shows what one strategy without words reaches.

The lines of built-in configurations come with the games, in `games/NAME/silence.json`; `selfplay game silence` writes
those of other configurations to `data/silence.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from selfplay_pipeline.core.content_hash import file_hash
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.sections import Section

STORED = Path("data/silence.json")
"""File with the rewards of strategies without words, for the configurations of users."""
WITHOUT_EFFECT = frozenset(
    {"max_length", "max_errors", "max_words", "mute", "prompts", "protocol", "messages", "max_searches"}
)
"""Settings that do not change the lines, because they change neither the states nor the value of a proposal."""


LineName = Literal["silence", "pass", "counter"]
SILENCE: LineName = "silence"
PASS: LineName = "pass"
COUNTER: LineName = "counter"
Rewards = NDArray[np.float64]
"""Rewards of one strategy, shape (states,), or (states, thresholds) for `pass`."""
THRESHOLDS = np.linspace(0.4, 1, 25)
"""Candidate thresholds of `pass`."""


class Line(BaseModel):
    """Expected reward of one strategy without words under one configuration, shown as a reference line in charts.

    Attributes:
        value: Mean reward of all seats over the states.
        standard_error: Standard error of the mean.
        states: Number of sampled states.
        threshold: Best threshold of `pass`; None for the other lines.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: float
    standard_error: float
    states: int
    threshold: float | None = None

    def __str__(self) -> str:
        return f"{self.value:.3f} ± {self.standard_error:.3f} (standard error, {self.states:,} states)"


Lines = dict[LineName, Line]
"""Expected rewards of strategies without words under one configuration, by name; uncomputed ones are missing."""


class StoredLines(BaseModel):
    """Entry of `silence.json`: expected rewards of strategies without words, and the settings of their game.

    Attributes:
        game: Settings that change the lines.
        code: Content hashes of a user's files that decide the rules, by the settings that name them.
        lines: The expected rewards.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    game: dict[str, Any]
    code: dict[str, str] = Field(default={}, exclude_if=lambda code: not code)
    lines: Lines

    @classmethod
    def of(cls, config: Section, code: Mapping[str, str], lines: Lines) -> StoredLines:
        return cls(game=settings_of(config), code=hashes_of(code), lines=lines)

    def is_of(self, config: Section, code: Mapping[str, str]) -> bool:
        """Whether the lines belong to this configuration of a game and the user's files (`GameSettings.code`).

        Settings that are missing in the file count as their defaults. Settings that cannot be read, such as those of
        another version, belong to no configuration.
        """
        settings = settings_of(config)
        if self.game.get("name") != settings["name"] or self.code != hashes_of(code):
            return False
        # Some settings are only valid together, such as one-sided visibility and the fixed protocol.
        without_effect = config.model_dump(mode="json", include=set(WITHOUT_EFFECT))
        try:
            return settings_of(type(config).model_validate(without_effect | self.game)) == settings
        except ValidationError:
            return False


class LinesFile(BaseModel):
    """Content of `silence.json`: expected rewards of strategies without words, one entry per configuration."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: tuple[StoredLines, ...] = ()

    @classmethod
    def read(cls, path: Path) -> LinesFile:
        """Returns the content of a file; empty if the file does not exist.

        Raises:
            UserError: The file has other content.
        """
        return read_model(path, cls, "selfplay game silence") if path.exists() else cls()


ABOUT = {
    PASS: "pass: the first player makes such a proposal if it promises enough, else it passes and the second proposes",
    COUNTER: "counter: the second player infers from the first one's proposal what it sees, and may propose another",
}
"""Descriptions of the strategies other than `silence`, for tables and charts."""


def in_words(proposer: str, lines: Lines, *, bound: bool, shared: bool = True) -> str:
    """Returns a description of strategies without words, for the reader of a table or chart.

    Args:
        proposer: Text about the knowledge of the proposer of `silence`.
        lines: The strategies to describe, with their expected rewards.
        bound: Whether `silence` is an upper bound for all play without the content of messages.
        shared: Whether all seats have the same reward; if not, it bounds their mean only.
    """
    if SILENCE not in lines:
        return ""
    said = [f"silence: one fixed proposer, who {proposer} and hears nothing, makes one proposal, which is accepted"]
    said += [about for name, about in ABOUT.items() if name in lines]
    return "; ".join(
        [
            *said,
            "in the fixed protocol no play without the content of messages exceeds silence"
            + ", in the mean over all seats" * (not shared)
            if bound
            else "these are plays without words, and none is a bound: passes and proposals tell something too",
        ]
    )


S = TypeVar("S")


def best_of_means(states: Iterable[S], means: Callable[[S], NDArray[np.float64]]) -> Rewards:
    """Returns the expected reward of the best proposal on each state.

    One estimate chooses the proposal, and another one values it, since the best of estimates is too high on average.

    Args:
        states: The states.
        means: Returns an estimate of the expected reward of each proposal on a state, NaN for impossible ones; each
            call draws anew.
    """
    found = []
    for state in states:
        one, other = means(state), means(state)
        found.append((one.flat[np.nanargmax(other)] + other.flat[np.nanargmax(one)]) / 2)
    return np.array(found)


def settings_of(config: Section) -> dict[str, Any]:
    """Returns the settings of a game that change its lines."""
    return config.model_dump(mode="json", exclude=set(WITHOUT_EFFECT))


def hashes_of(code: Mapping[str, str]) -> dict[str, str]:
    """Returns the content hashes of a user's files that decide the rules, by the settings that name them."""
    return {key: file_hash(Path(file)) for key, file in code.items() if Path(file).is_file()}


def stored_lines(config: Section, code: Mapping[str, str], folder: Path) -> Lines:
    """Returns the lines of a configuration, the more exact ones if both the user's file and the game's have it.

    They are empty if none are stored.

    Args:
        config: The configuration.
        code: The user's files that decide the rules, by the settings that name them (`GameSettings.code`).
        folder: Folder of the game.

    Raises:
        UserError: A file of lines, such as `data/silence.json`, cannot be read.
    """
    files = (STORED, folder / "silence.json")
    found = [stored.lines for file in files for stored in LinesFile.read(file).entries if stored.is_of(config, code)]
    return max(found, key=lambda lines: min((line.states for line in lines.values()), default=0), default={})
