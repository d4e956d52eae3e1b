"""Scripted players for warm starts: users tell what their meetings cost, but the agent makes no use of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.abilities import Lesson, Stage
from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.mediation.rules import AGENT
from selfplay_pipeline.games.mediation.scripted import NOTHING, OwnView, PlayerView, Random, Sharing
from selfplay_pipeline.games.teachers import RejectsFirst


@dataclass(frozen=True)
class Teacher(RejectsFirst):
    """Plays as `Random` does, but as a user it may first tell its true points, and sometimes rejects a proposal."""

    tells: float = 0.6
    """Chance that a user tells what its meetings cost when it speaks first."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return Random().act(view, rng)
        if view.pending:
            return "[accept]" if self.agrees(view, rng) else "[reject]"
        return f"[{MESSAGE}] {NOTHING}" if rng.random() >= self.tells else Sharing().act(view, rng)


@dataclass(frozen=True)
class DeafTeacher(Teacher):
    """Plays as `Teacher` does as a user; as the agent it plans by its own view, whatever it is told."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        return OwnView().act(view, rng) if view.seat == AGENT else super().act(view, rng)


WORDS = (
    *("[message]", "[propose]", "[accept]", "[reject]", "0:", "1:"),
    *("system", "user", "assistant", "see", "error", "offer", "failed", "to", NOTHING, "price", "arrival"),
    *"0123456789",
)
DEAF = ("deaf-teacher",) * 3
LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_mediation_model"),
        words=WORDS,
        stages=(Stage(("teacher", "teacher", "teacher"), episodes=4800, epochs=1),),
    ),
    "deaf": Lesson(
        folder=Path("data/tiny_deaf_mediation_model"),
        words=WORDS,
        stages=(Stage(DEAF, episodes=3200, epochs=1, mute=True), Stage(DEAF, episodes=800, epochs=1)),
    ),
}
"""Warm starts that the tiny model can learn, by name."""
