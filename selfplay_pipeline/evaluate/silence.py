"""Expected rewards of a game's strategies without words: computed and stored by `selfplay game silence`, and those of
silence on given states.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.reporting import logger, progress
from selfplay_pipeline.games.base import SILENCE, Game, State, state_rng
from selfplay_pipeline.games.silence import SILENCE as SILENCE_LINE
from selfplay_pipeline.games.silence import (
    THRESHOLDS,
    Line,
    LineName,
    Lines,
    LinesFile,
    Rewards,
    StoredLines,
)
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.metrics.figures import REWARD

Mode = TypeVar("Mode")
AT_ONCE = 50
"""Number of states per batch of computations."""


def compute_lines(game: Game, states: int, seed: int) -> Lines:
    """Returns the mean reward of each strategy without words, on states from a separate seed space.

    Args:
        game: The configured game.
        states: Number of states, at least 2.
        seed: Seed of the states.

    Raises:
        UserError: The game has no such lines with this configuration.
    """
    game.need("wordless_rewards", "game silence")
    found = _wordless(game, lambda number: game.sample_state(state_rng(seed, number, SILENCE)), states, seed)
    return {name: line_of(rewards) for name, rewards in found.items()}


def _wordless(game: Game, state_of: Callable[[int], State], count: int, seed: int) -> dict[LineName, Rewards]:
    """Returns the rewards of each strategy without words on each of the states with numbers below `count`."""
    found: list[Mapping[LineName, Rewards]] = []
    with progress("play without words") as report:
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            states = [state_of(number) for number in numbers]
            found.append(game.wordless_rewards(states, np.random.default_rng([SILENCE, seed, start, AT_ONCE])))
            report(numbers.stop, count, lambda: "states")
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def above_silence(game: Game, states: Sequence[State], rewards: Mapping[Mode, Totals]) -> dict[Mode, Interval]:
    """Returns the reward minus the expected reward of silence, paired by state, for each mode of play.

    It is empty where silence bounds no play, or cannot be computed on these states; the reason of the latter is logged.

    Args:
        game: The played game.
        states: The played states.
        rewards: Figures of the played episodes, by state, among them the reward.
    """
    if not (game.silence_is_bound and game.shared_reward and game.has("wordless_rewards")):
        return {}
    try:
        expected = _wordless(game, states.__getitem__, len(states), seed=0)[SILENCE_LINE]
    except UserError as error:
        logger.warning(f"silence is not computed on these states: {error}")
        return {}
    silence = Totals.of({REWARD.name: (expected, np.ones(len(states)))})
    return {mode: contrast([(1, of.select([REWARD.name])), (-1, silence)])[REWARD.name] for mode, of in rewards.items()}


def line_of(rewards: Rewards) -> Line:
    """Returns the mean, with its error, of rewards of shape (states,) or (states, thresholds).

    In the second case, each half of the states is measured at the threshold that is best on the other half. The best of
    several measured means would be biased upward.
    """
    threshold = None
    if rewards.ndim > 1:
        threshold = round(float(THRESHOLDS[rewards.mean(axis=0).argmax()]), 3)
        one, other = rewards[::2], rewards[1::2]
        rewards = np.concatenate([one[:, other.mean(axis=0).argmax()], other[:, one.mean(axis=0).argmax()]])
    error = float(np.std(rewards, ddof=1) / len(rewards) ** 0.5)
    return Line(value=float(np.mean(rewards)), standard_error=error, states=len(rewards), threshold=threshold)


def check_lines(path: Path, game: Game, states: int) -> None:
    """Raises UserError if a file holds other data, or more exact lines of the same configuration than of `states`."""
    for stored in LinesFile.read(path).entries:
        known = min((line.states for line in stored.lines.values()), default=0)
        if stored.is_of(game.config, game.config.code()) and known > states:
            raise UserError(
                f"{path}: has lines of this configuration from {known:,} states, which are more exact than those of "
                f"{states:,}; give more --num-states, or another --output"
            )


def store_lines(path: Path, game: Game, lines: Lines) -> None:
    """Store the lines of a game's configuration in a file; replaces earlier lines of the same configuration.

    Raises:
        UserError: The file holds other data.
    """
    others = [stored for stored in LinesFile.read(path).entries if not stored.is_of(game.config, game.config.code())]
    content = LinesFile(entries=(*others, StoredLines.of(game.config, game.config.code(), lines)))
    write_text(path, content.model_dump_json(indent=2, exclude_none=True) + "\n")
