"""Scripted players that speak English: teachers and partners of language models under the default prompts.

The random generator chooses among phrasings. The game reads all of them without loss: `text.told_values` reads told
values, `text.asked_items` questions, and `text.parse_share` proposals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.bargaining.rules import ITEMS, Triple, shares
from selfplay_pipeline.games.bargaining.scripted import PlayerView, Sharing, best_share, heard_values, sum_first
from selfplay_pipeline.games.bargaining.text import asked_items
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.games.teachers import ACCEPTING, choose

TOLD = (
    "a {item} is worth {number} to me", "{item}s: {number}", "I value {item}s at {number}",
    "{number} points for each {item}", "each {item} is worth {number}", "my {item}s are worth {number} each",
)  # fmt: skip
TELLING = ("{}.", "Hi! {}.", "On my side {}.", "Here are my values. {}.", "These are my values: {}.")
ASKING = (
    "What are your values?", "What is each item worth to you?", "Hi! How many points are they worth to you?",
    "How much is a book worth to you, and a hat, and a ball?", "Can you tell me your values?",
)  # fmt: skip
TAKEN = ("{item} {number}", "{item}s: {number}", "{number} {item}")
REJECTING = ("[reject]", "[reject] I know of a better split.", "[reject] We can do better.", "[reject] Let me explain.")
JOINED = (", ", " and ", "; ")
"""Text between several items."""


@dataclass(frozen=True)
class Speaking(Sharing):
    """Plans and judges as `Sharing` does.

    It also answers questions, may ask first, and may answer told values with its own.
    """

    asks: float = 0.4
    """Chance that the player begins with a question in the free protocol; in the fixed one it tells at once."""
    answers: float = 0.3
    """Chance that the player answers told values with its own values."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return choose(ACCEPTING if self.agrees(view, view.pending, rng) else REJECTING, rng)
        if view.due is ActionKind.PROPOSE:
            return propose(self.share(view, rng), rng)
        if view.history and view.history[-1][0] != view.seat and asked_items(view.history[-1][1]):
            return tell(view, rng)
        spoke = any(text.startswith("[message]") for text in view.said(view.seat))
        heard = heard_values(view)
        if not spoke and not heard and view.due is None and rng.random() < self.asks:
            return f"[message] {choose(ASKING, rng)}"
        if not spoke and (not heard or rng.random() < self.answers):
            return tell(view, rng)
        if view.due is ActionKind.MESSAGE:
            return tell(view, rng)
        return propose(self.share(view, rng), rng)

    def share(self, view: PlayerView, rng: np.random.Generator) -> Triple:
        """Returns the share that the player proposes to take."""
        return best_share(view, sum_first)


@dataclass(frozen=True)
class SpeakingTeacher(Speaking):
    """Speaks as `Speaking` does, but proposes random splits; self-play has to find how to plan with values."""

    rejects: float = 0.1
    """Chance that the player rejects a first proposal, whatever its value."""

    def agrees(self, view: PlayerView, offered: Triple, rng: np.random.Generator) -> bool:
        return "[reject]" in view.said(view.seat) or rng.random() >= self.rejects

    def share(self, view: PlayerView, rng: np.random.Generator) -> Triple:
        choices = shares(view.counts)
        return choices[int(rng.integers(len(choices)))]


def tell(view: PlayerView, rng: np.random.Generator) -> str:
    """Returns the message that tells the player's values."""
    return f"[message] {choose(TELLING, rng).format(_listed(view.values, TOLD, rng))}"


def propose(share: Triple, rng: np.random.Generator) -> str:
    """Returns the proposal in which the player takes `share`."""
    return f"[propose] Proposal: {_listed(share, TAKEN, rng)}"


def _listed(numbers: Triple, phrasings: Sequence[str], rng: np.random.Generator) -> str:
    phrasing = choose(phrasings, rng)
    said = [phrasing.format(item=item, number=number) for item, number in zip(ITEMS, numbers, strict=True)]
    return choose(JOINED, rng).join(said)
