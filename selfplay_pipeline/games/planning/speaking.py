"""Scripted players that speak English: teachers and partners of language models under the default prompts.

The random generator chooses among phrasings, all of which `text.told_preferences` and `text.told_points` read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.planning.rules import AGENT, Itinerary
from selfplay_pipeline.games.planning.scripted import (
    PlayerView,
    Sharing,
    best_itinerary,
    random_itinerary,
    random_search,
    told_wishes,
)
from selfplay_pipeline.games.planning.text import format_points, format_proposal
from selfplay_pipeline.games.teachers import ACCEPTING, REJECTING, RejectsFirst, choose

TELLING = ("I have some wishes: {}.", "Hi! This is what I have in mind: {}.", "For this day: {}.", "My list: {}.")
GREETING = ("Hi! Can you plan a day for me?", "Hello, what can I see here?", "Hi there, I need some ideas for a day.")
ASKING = (
    "What do you like, and what is your budget?", "Hi! What are you looking for?",
    "Tell me about your preferences, please.",
)  # fmt: skip
OFFERED = ("My points for that one: {}.", "That day gives me {}.", "We can do better, I get {}.")


@dataclass(frozen=True)
class Speaking(Sharing):
    """Plans and judges as `Sharing` does. As a user it may only greet first; as the agent it asks a user that told
    nothing, and may search before it proposes."""

    greets: float = 0.3
    """Chance that a user begins with a greeting."""
    searches: float = 0.3
    """Chance that the agent searches before it proposes."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return self._advise(view, rng)
        if view.pending:
            return choose(ACCEPTING if self.agrees(view, rng) else REJECTING, rng)
        if not view.said(view.seat) and view.due is None and rng.random() < self.greets:
            return f"[{MESSAGE}] {choose(GREETING, rng)}"
        if view.offers and told_wishes(view):
            return f"[{MESSAGE}] {choose(OFFERED, rng).format(format_points(view.offers[-1]))}"
        texts = "; ".join(wish.text for wish in view.preferences)
        return f"[{MESSAGE}] {choose(TELLING, rng).format(texts)}"

    def plan(self, view: PlayerView, rng: np.random.Generator) -> Itinerary:
        """Returns the places that the agent proposes."""
        return best_itinerary(view)

    def _advise(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.says(not told_wishes(view) and not view.said(AGENT)):
            return f"[{MESSAGE}] {choose(ASKING, rng)}"
        if not view.searches and view.rules.max_searches and rng.random() < self.searches:
            return random_search(view, rng)
        return format_proposal(self.plan(view, rng))


@dataclass(frozen=True)
class SpeakingTeacher(RejectsFirst, Speaking):
    """Speaks as `Speaking` does, but proposes random places; self-play has to find how to plan with what is told."""

    def plan(self, view: PlayerView, rng: np.random.Generator) -> Itinerary:
        return random_itinerary(view, rng)
