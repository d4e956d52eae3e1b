"""`selfplay silence`: computes and stores the silence line of a game."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.games.abilities import SilenceLine, ability
from selfplay_pipeline.games.base import SILENCE, Game, state_rng
from selfplay_pipeline.games.silence import Silence, StoredLine, StoredLines, settings_of

AT_ONCE = 50
"""Number of states per batch of computations."""


def compute_silence(game: Game, states: int, seed: int) -> Silence:
    """Returns the mean expected reward of silent play over states from a separate seed space.

    Args:
        game: The configured game.
        states: Number of states, at least 2.
        seed: Seed of the states.

    Raises:
        UserError: The game has no silence line with this configuration.
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
    """Store a silence line in a file; replaces an earlier line of the same settings.

    Raises:
        UserError: The file holds other data.
    """
    others = [line for line in StoredLines.read(path).lines if not line.is_of(game.config)]
    lines = StoredLines(lines=(*others, StoredLine(game=settings_of(game.config), silence=silence)))
    write_text(path, lines.model_dump_json(indent=2) + "\n")
