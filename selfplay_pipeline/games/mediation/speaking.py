"""Scripted players that speak English: teachers and partners of language models under the default prompts.

The random generator chooses among phrasings, all of which `text.told_costs` and `text.told_offer` read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.base import MESSAGE
from selfplay_pipeline.games.mediation.rules import AGENT, USERS, Pair
from selfplay_pipeline.games.mediation.scripted import PlayerView, Sharing, best_pair, random_pair
from selfplay_pipeline.games.mediation.text import format_proposal, told_costs, told_offer
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.games.teachers import ACCEPTING, REJECTING, RejectsFirst, choose

TOLD = ("flight {} costs me {} points", "flight {}: {}", "flight {} clashes with {} points of meetings")
TELLING = ("{}.", "Hi! {}.", "This is what my meetings say: {}.", "By my meetings {}.", "Here is my list: {}.")
GREETING = (
    "Hi! Can you find me a flight?", "Hello, which flights do you have in mind?", "Hi there, what do you need to know?",
)  # fmt: skip
ASKING = (
    "What would each flight cost you in meetings?", "Hi! How many points of meetings would each flight cost you?",
    "Can you tell me which flights clash with important meetings?",
)  # fmt: skip
OFFERED = (
    "For that one I get price {}, arrival {}.", "My points were price {}, arrival {}.",
    "We can do better: price {}, arrival {}.",
)  # fmt: skip


@dataclass(frozen=True)
class Speaking(Sharing):
    """Plans and judges as `Sharing` does. As a user it may only greet first; as the agent it asks who has not told."""

    greets: float = 0.3
    """Chance that a user begins with a greeting."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.seat == AGENT:
            return self._mediate(view, rng)
        if view.pending:
            return choose(ACCEPTING if self.agrees(view, rng) else REJECTING, rng)
        if not view.said and view.due is None and rng.random() < self.greets:
            return f"[{MESSAGE}] {choose(GREETING, rng)}"
        if view.offers and _has_told(view, view.seat):
            return f"[{MESSAGE}] {choose(OFFERED, rng).format(view.offers[-1].price, view.offers[-1].arrival)}"
        return tell(view, rng)

    def plan(self, view: PlayerView, rng: np.random.Generator) -> Pair:
        """Returns the flights that the agent proposes."""
        return best_pair(view)

    def _mediate(self, view: PlayerView, rng: np.random.Generator) -> str:
        silent = [user for user in USERS if not _has_told(view, user)]
        if view.due is ActionKind.MESSAGE or (view.due is None and silent):
            room = silent[0] if view.room_due is None else view.room_due
            return f"[{MESSAGE}] user {room}: {choose(ASKING, rng)}"
        return format_proposal(self.plan(view, rng))


@dataclass(frozen=True)
class SpeakingTeacher(RejectsFirst, Speaking):
    """Speaks as `Speaking` does, but proposes random flights; self-play has to find how to plan with what is told."""

    def plan(self, view: PlayerView, rng: np.random.Generator) -> Pair:
        return random_pair(view, rng)


def tell(view: PlayerView, rng: np.random.Generator) -> str:
    """Returns the message that tells what the meetings of each flight cost."""
    phrasing = choose(TOLD, rng)
    listed: Sequence[str] = [phrasing.format(flight, -points) for flight, points in enumerate(view.meetings)]
    return f"[{MESSAGE}] {choose(TELLING, rng).format(', '.join(listed))}"


def _has_told(view: PlayerView, user: int) -> bool:
    return any(told_offer(text) is None and told_costs(text) for text in view.heard(user))
