"""Scripted player for a warm start: it knows the rules and tells its values, but proposes random splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.bargaining.rules import ITEMS
from selfplay_pipeline.games.bargaining.scripted import PlayerView, Random, tell
from selfplay_pipeline.games.base import Lesson, Play, Stage


@dataclass(frozen=True)
class Teacher:
    """Plays as `Random` does, but may first tell its true values, and sometimes rejects a proposal."""

    tell: float = 0.6
    """Chance that the player tells its values before it proposes."""
    reject: float = 0.1
    """Chance that the player rejects a first proposal, whatever its value."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        mine = view.said(view.seat)
        if view.pending is not None:
            return "[reject]" if "[reject]" not in mine and rng.random() < self.reject else "[accept]"
        return tell(view) if view.says(not mine and rng.random() < self.tell) else Random().act(view, rng)


LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_bargaining_model"),
        words=(
            *("[message]", "[propose]", "[accept]", "[reject]"),
            *("system", "user", "assistant", "split", "see", "error", "again", "Proposal"),
            *ITEMS,
            *"0123456789",
        ),
        stages=(Stage((Play(("teacher", "teacher"), 9600),), epochs=1),),
    )
}
"""Warm starts that the tiny model can learn, by name."""
