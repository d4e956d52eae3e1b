"""Scripted player for a warm start: users tell what their meetings cost, but the agent proposes random flights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.abilities import Lesson, Stage
from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.mediation.rules import AGENT
from selfplay_pipeline.games.mediation.scripted import NOTHING, PlayerView, Random, Sharing


@dataclass(frozen=True)
class Teacher:
    """Plays as `Random` does, but as a user it may first tell its true points, and sometimes rejects a proposal."""

    tells: float = 0.6
    """Chance that a user tells what its meetings cost when it speaks first."""
    rejects: float = 0.1
    """Chance that a user rejects a first proposal, whatever its value."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return Random().act(view, rng)
        if view.pending:
            return "[reject]" if len(view.offers) == 1 and rng.random() < self.rejects else "[accept]"
        return f"[{MESSAGE}] {NOTHING}" if rng.random() >= self.tells else Sharing().act(view, rng)


LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_mediation_model"),
        words=(
            *("[message]", "[propose]", "[accept]", "[reject]", "0:", "1:"),
            *("system", "user", "assistant", "see", "error", "offer", "failed", "to", NOTHING, "price", "arrival"),
            *"0123456789",
        ),
        stages=(Stage(("teacher", "teacher", "teacher"), episodes=4800, epochs=1),),
    )
}
"""Warm starts that the tiny model can learn, by name."""
