"""`selfplay silence`: compute the silence line of a configuration's game and store it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.games.abilities import SilenceLine, ability
from selfplay_pipeline.games.base import SILENCE, Game, state_rng
from selfplay_pipeline.games.silence import Silence, StoredLine, StoredLines, settings_of

AT_ONCE = 50
"""States whose views are computed together."""


def compute_silence(game: Game, states: int, seed: int) -> Silence:
    """Sample states from a seed space of their own, and take the mean of what silent play can expect on each.

    Args:
        states: how many, 2 or more.

    Raises:
        UserError: the game knows no silence line under this configuration.
    """
    rewards, silent_rewards = list[float](), ability(game, SilenceLine, "silence").silent_rewards
    with progress("silence line") as report:
        for start in range(0, states, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, states))
            sampled = [game.sample_state(state_rng(seed, number, SILENCE)) for number in numbers]
            rewards += silent_rewards(sampled, np.random.default_rng([SILENCE, seed, start, AT_ONCE]))
            report(len(rewards), states, lambda: "states")
    return Silence(
        value=float(np.mean(rewards)), standard_error=float(np.std(rewards, ddof=1) / states**0.5), states=states
    )


def store_silence(path: Path, game: Game, silence: Silence) -> None:
    """Add a line to a file, instead of an earlier one of the same settings.

    Raises:
        UserError: the file holds something else.
    """
    others = [line for line in StoredLines.read(path).lines if not line.is_of(game.config)]
    lines = StoredLines(lines=(*others, StoredLine(game=settings_of(game.config), silence=silence)))
    write_text(path, lines.model_dump_json(indent=2) + "\n")
