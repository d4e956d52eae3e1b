"""Scripted players for warm starts: users tell what their meetings cost, but the agent makes no use of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.base import MESSAGE, Lesson, Play, Stage
from selfplay_pipeline.games.mediation.rules import AGENT
from selfplay_pipeline.games.mediation.scripted import NOTHING, PlayerView, Random, Sharing
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


WORDS = (
    *("[message]", "[propose]", "[accept]", "[reject]", "0:", "1:"),
    *("system", "user", "assistant", "see", "error", "offer", "failed", "to", NOTHING, "price", "arrival"),
    # The agent compares numbers, which is hard where one is written in several tokens.
    *map(str, range(100)),
)
LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_mediation_model"),
        words=WORDS,
        stages=(Stage((Play(("teacher", "teacher", "teacher"), 4800),), epochs=1, batch_size=32),),
    ),
}
"""Warm starts that the tiny model can learn, by name."""
