"""Scripted players for warm starts: users tell what their meetings cost, but the agent makes no use of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.base import MESSAGE, Lesson, Play, Stage
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, clashes
from selfplay_pipeline.games.mediation.scripted import (
    MEAN_IMPORTANCE,
    NOTHING,
    PlayerView,
    Random,
    Sharing,
    expected_scores,
)
from selfplay_pipeline.games.mediation.states import possible_events
from selfplay_pipeline.games.mediation.text import format_proposal
from selfplay_pipeline.games.tags import ActionKind
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
    """Plays as `Teacher` does as a user; as the agent it plans by its own view, whatever it is told.

    Its plan is nearly that of `own-view`, without the noise and the time of drawn states: each meeting that it does not
    see counts with its chance in a calendar.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat != AGENT or view.due is ActionKind.MESSAGE:
            return super().act(view, rng)
        one, other = (unseen_points(view, user) for user in USERS)
        nothing = dict[int, tuple[()]]({user: () for user in USERS})
        scores = expected_scores(replace(view, rooms=nothing, made=nothing)) + one[:, None] + other[None, :]
        row, column = divmod(int(scores.argmax()), scores.shape[1])
        return format_proposal((row, column))


def unseen_points(view: PlayerView, user: int) -> NDArray[np.float64]:
    """Returns the expected points for meetings that the agent does not see, by flight, as if it saw none."""
    events, chances = possible_events(view.rules.days, view.rules.p_event)
    busy = clashes(events, view.flights[user]) @ chances
    return np.asarray(-MEAN_IMPORTANCE * (1 - view.rules.p_shared) * busy)


WORDS = (
    *("[message]", "[propose]", "[accept]", "[reject]", "0:", "1:"),
    *("system", "user", "assistant", "see", "error", "offer", "failed", "to", NOTHING, "price", "arrival"),
    # The agent compares numbers, which is hard where one is written in several tokens.
    *map(str, range(100)),
)
DEAF = ("deaf-teacher",) * 3
LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_mediation_model"),
        words=WORDS,
        stages=(Stage((Play(("teacher", "teacher", "teacher"), 4800),), epochs=1, batch_size=32),),
    ),
    "deaf": Lesson(
        folder=Path("data/tiny_deaf_mediation_model"),
        words=WORDS,
        stages=(  # reading its own view is the agent's hard part, and is learned first
            Stage((Play(DEAF, 14_400, seats=(AGENT,), mute=True),), epochs=1, batch_size=32),
            Stage((Play(DEAF, 4800),), epochs=1, batch_size=32),
        ),
    ),
}
"""Warm starts that the tiny model can learn, by name."""
