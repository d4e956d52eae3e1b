"""Scripted player for a warm start: the user tells its preferences, but the agent proposes random places."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.abilities import Lesson, Stage
from selfplay_pipeline.games.planning.catalogue import CATEGORIES, first_places
from selfplay_pipeline.games.planning.rules import AGENT
from selfplay_pipeline.games.planning.scripted import NOTHING, PlayerView, Random, tell
from selfplay_pipeline.games.teachers import RejectsFirst

TINY = 5
"""Number of places whose names the tiny model has as words."""


@dataclass(frozen=True)
class Teacher(RejectsFirst):
    """Plays as `Random` does, but as a user it may first tell its preferences, and sometimes rejects a proposal."""

    tells: float = 0.6
    """Chance that a user tells its preferences when it speaks."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return Random().act(view, rng)
        if view.pending:
            return "[accept]" if self.agrees(view, rng) else "[reject]"
        return tell(view) if view.preferences and rng.random() < self.tells else NOTHING


LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_planning_model"),
        words=(
            *("[message]", "[propose]", "[accept]", "[reject]", "system", "user", "assistant", "see", "plan", "error"),
            *("none", "offer", "places", "travel", "rest", "type", "budget", "go", "must", "yes", "no", ",", ";"),
            *("touristy", "kids", "groups", *CATEGORIES),
            *dict.fromkeys(word for name in first_places(TINY) for word in name.split()),
            *"0123456789+-",
        ),
        stages=(Stage(("teacher", "teacher"), episodes=4800, epochs=1),),
    )
}
"""Warm starts that the tiny model can learn, by name."""
