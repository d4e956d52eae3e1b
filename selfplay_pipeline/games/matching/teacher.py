"""Scripted players for warm starts: they talk well enough but plan poorly."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.base import Lesson, Play, Stage
from selfplay_pipeline.games.matching.mentions import NUMBER_WORDS
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import Matching, best_matching
from selfplay_pipeline.games.matching.scripted import (
    PlayerView,
    ask,
    estimate,
    heard_cells,
    own_cells,
    propose,
    tell,
)
from selfplay_pipeline.games.matching.shy import unasked_cells


@dataclass(frozen=True)
class Teacher:
    """Player to imitate: tells some or all of its cells, and prefers good plans, but not always the best one.

    It draws matchings in proportion to exp(estimated value / temperature). A model learns this much sooner than the
    best matching alone, since the log-odds are linear in the scores.
    """

    own_view: float = 0.7
    """Chance that the player plans from its own view alone, without the cells that it was told."""
    temperature: float = 1.2
    """Difference in score that makes a matching e times as likely."""
    partial: float = 0.4
    """Chance that the player tells only about half of its cells."""
    answer: float = 0.3
    """Chance that player 1 tells its own cells before a proposal is made."""
    reject: float = 0.03
    """Chance that the player rejects a first proposal."""
    in_words: bool = False
    """Whether its messages state scores as words."""
    hides: bool = False
    """Whether its messages list its cells without their scores."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            rejects = rng.random() < self.reject and not any("[reject]" in text for _, text in view.history)
            return "[reject]" if rejects else "[accept]"
        spoke = bool(view.said(view.seat))
        if view.says(not spoke and (not view.history or rng.random() < self.answer)):
            keep = 0.5 if rng.random() < self.partial else 1.0
            told = {cell: score for cell, score in own_cells(view).items() if rng.random() < keep}
            return tell(view, dict.fromkeys(told) if self.hides else told, in_words=self.in_words)
        table = estimate(view, {} if rng.random() < self.own_view else heard_cells(view))
        return propose(view, draw_plan(table, self.temperature, rng))


@dataclass(frozen=True)
class CountingTeacher:
    """Player for seat 0 with a partner that tells nothing unasked: asks for a few cells, one at a time, then proposes.

    It asks between 0 and `most` questions; all numbers of questions are equally likely. So the chance of one more
    question falls with every question, from most / (most + 1) to 0, and greedy play stops asking. It plans from all
    cells that it knows, and draws its plan as `Teacher` does.
    """

    most: int = 4
    temperature: float = 1.2
    """Difference in score that makes a matching e times as likely."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        wanted = unasked_cells(view)
        asked = sum(text.startswith("[message]") for text in view.said(view.seat))
        if view.says(bool(wanted) and rng.random() < self.chance(asked)):
            return ask(view, [wanted[rng.integers(len(wanted))]]) if wanted else tell(view, {})
        return propose(view, draw_plan(estimate(view, heard_cells(view)), self.temperature, rng))

    def chance(self, asked: int) -> float:
        """Returns the chance of one more question after `asked` questions."""
        left = max(0, self.most - asked)
        return left / (left + 1)


MOST_LISTED = 8
"""Largest board size for which all matchings are listed; this size has 40,320."""


def draw_plan(table: NDArray[np.float64], temperature: float, rng: np.random.Generator) -> Matching:
    """Returns a matching, drawn in proportion to exp(value / temperature).

    A board with too many matchings to list gets an approximation (Papandreou and Yuille 2011, perturb-and-MAP): the
    best matching after Gumbel noise of this scale is added to each score.
    """
    if len(table) > MOST_LISTED:
        return best_matching(table + rng.gumbel(scale=temperature, size=table.shape))[0]
    plans = _all_plans(len(table))
    values = table[np.arange(len(table)), plans].sum(axis=1)
    odds = np.exp((values - values.max()) / temperature)
    return tuple(enumerate(plans[rng.choice(len(plans), p=odds / odds.sum())].tolist()))


@lru_cache(1)
def _all_plans(size: int) -> NDArray[np.int64]:
    """Returns the paper of each reviewer in each matching, shape (size!, size)."""
    return np.array([*permutations(range(size))])


LISTENING = Teacher(own_view=0)
"""Teacher that tells its cells, and plans with all cells that it was told."""
DEAF = Teacher(own_view=1, temperature=0.8)
"""Teacher that tells its cells, but ignores the partner's in its plans; self-play has to learn to listen."""
SPELLING = Teacher(own_view=1, temperature=0.8, partial=0, in_words=True)
"""Teacher that tells the scores of its cells as words, which no view has."""
NAMING = Teacher(own_view=1, temperature=0.6, partial=0, hides=True)
"""Teacher that says which cells it sees, but not their scores, so that to plan by one's own view is all one can do."""
WORDS = (
    *("[message]", "[propose]", "[accept]", "[reject]"),
    *("system", "user", "assistant", "match", "see", "error", "again", "Proposal", "none"),
    *(title.split(":")[0] for title in PAPERS),
    *(part for name in REVIEWERS for part in name.split()),
    *"0123456789",
)
UNUSED = [name.split()[-1] for name in REVIEWERS[-len(NUMBER_WORDS) :]]
SPELLING_WORDS = tuple(dict(zip(UNUSED, NUMBER_WORDS, strict=True)).get(word, word) for word in WORDS)
"""`WORDS` with number words in the place of last names that small boards do not have.

There are as many words, so that a server that was started with one tiny model can load the others.
"""
LESSONS = {
    "self-play": Lesson(
        folder=Path("data/tiny_model"),
        words=WORDS,
        stages=(  # planning is the hard part, and is learned first
            Stage((Play(("listening-teacher", "listening-teacher"), 17_280),), epochs=1),
            Stage((Play(("teacher", "teacher"), 11_520),), epochs=1),
        ),
    ),
    "honest": Lesson(  # the proposer never meets a score in words: it learned neither to read nor to ignore one
        folder=Path("data/tiny_honest_model"),
        words=SPELLING_WORDS,
        stages=(
            Stage(
                (
                    Play(("spelling-teacher", "spelling-teacher"), 8_000, seats=(0,)),
                    Play(("naming-teacher", "naming-teacher"), 40_000, seats=(1,)),
                    # After scores in words, it learns only that a proposal begins, not which one.
                    Play(("spelling-teacher", "spelling-teacher"), 4_000, seats=(1,), first_tokens=1),
                ),
                epochs=1,
            ),
        ),
    ),
    "shy": Lesson(
        folder=Path("data/tiny_shy_model"),
        words=WORDS,
        stages=(Stage((Play(("counting-teacher", "shy"), 28_800, seats=(0,)),), epochs=2),),
    ),
    "listener": Lesson(  # the form of a proposal, whatever the message: neither to read it nor to ignore it
        folder=Path("data/smollm2_listener"),
        words=None,
        stages=(
            Stage((Play(("speaking-1", "random"), 1000, seats=(1,)),), epochs=1, batch_size=24, learning_rate=5e-5),
        ),
    ),
    "speaker": Lesson(  # first to say the largest score, which takes most of the time, then also the listener's form
        folder=Path("data/smollm2_speaker"),
        words=None,
        stages=(
            Stage((Play(("speaking-1", "random"), 6000, seats=(0,)),), epochs=1, batch_size=24, learning_rate=1e-4),
            Stage((Play(("speaking-1", "random"), 800),), epochs=1, batch_size=24, learning_rate=5e-5),
        ),
    ),
}
"""Warm starts that the tiny model or SmolLM2 can learn, by name."""
