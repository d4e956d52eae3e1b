"""Scripted player for a warm start: the user tells its preferences, but the agent makes no use of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.base import Lesson, Play, Stage
from selfplay_pipeline.games.planning.catalogue import CATEGORIES, first_places
from selfplay_pipeline.games.planning.rules import AGENT, Itinerary, itinerary_at, miles_between, scores
from selfplay_pipeline.games.planning.scripted import NOTHING, PlayerView, Random, tell
from selfplay_pipeline.games.planning.text import format_proposal
from selfplay_pipeline.games.teachers import RejectsFirst

TINY = 5
"""Number of places whose names the tiny model has as words."""


@dataclass(frozen=True)
class Teacher(RejectsFirst):
    """Plays as `Random` does, but the user may first tell its preferences, and the agent often proposes a short way."""

    tells: float = 0.6
    """Chance that a user tells its preferences when it speaks."""
    plans: float = 0.7
    """Chance that the agent proposes the shortest way, whatever it was told."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            plans = not view.says(False) and rng.random() < self.plans
            return format_proposal(shortest_itinerary(view)) if plans else Random().act(view, rng)
        if view.pending:
            return "[accept]" if self.agrees(view, rng) else "[reject]"
        return tell(view) if view.preferences and rng.random() < self.tells else NOTHING


def shortest_itinerary(view: PlayerView) -> Itinerary:
    """Returns the itinerary with the shortest way."""
    ways = scores([], view.places, -miles_between(view.places))
    return itinerary_at(view.places, int(np.nanargmax(ways)))


TEACHERS = ("teacher", "teacher")
LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_planning_model"),
        words=(
            *("[message]", "[propose]", "[accept]", "[reject]", "[tool]", "system", "user", "assistant", "see", "plan"),
            *("error", "none", "offer", "places", "travel", "rest", "type", "budget", "go", "must", "yes", "no"),
            *(",", ";"),
            # A search and its result, which would otherwise have more tokens than all else.
            *("Search(fields=[price],", "filters=[category", "==", "],", "sort_by=[distance_to(", ")],", "limit="),
            *("Search Results", "No results", "name|price", "|", "(", ")", ":"),
            *("touristy", "kids", "groups", "+", "-", *CATEGORIES),
            *dict.fromkeys(word for name in first_places(TINY) for word in name.split()),
            # The agent compares numbers, which is hard where one is written in several tokens.
            *map(str, (*range(100), *range(100, 200, 10))),
        ),
        stages=(  # reading its own view is the agent's hard part, and is learned first
            Stage((Play(TEACHERS, 4800, seats=(AGENT,), mute=True),), epochs=1, batch_size=16),
            Stage((Play(TEACHERS, 1600),), epochs=1, batch_size=16),
        ),
    )
}
"""Warm starts that the tiny model can learn, by name."""
