"""Scripted players that speak English: teachers and partners of language models under the default prompts.

The random generator chooses among phrasings. The game reads all of them without loss: `mentions.told_cells` reads told
cells, `questions.asked_pairs` questions, and `proposals.parse_proposal` proposals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.matching.mentions import Cell, Cells
from selfplay_pipeline.games.matching.proposals import short
from selfplay_pipeline.games.matching.questions import NOUNS, asked_pairs
from selfplay_pipeline.games.matching.rules import Matching, best_matching
from selfplay_pipeline.games.matching.scripted import PlayerView, Sharing, estimate, first_name, heard_cells, own_cells
from selfplay_pipeline.games.matching.shy import Asker, unasked_cells
from selfplay_pipeline.games.matching.teacher import draw_plan
from selfplay_pipeline.games.questions import is_question
from selfplay_pipeline.games.tags import ActionKind
from selfplay_pipeline.games.teachers import ACCEPTING, choose

TOLD = (
    "{reviewer} on {paper} is {score}", "{reviewer} has {score} for {paper}", "{reviewer} scores {score} on {paper}",
    "{reviewer} for {paper}: {score}", "{reviewer} - {paper} {score}", "{reviewer} gets {score} with {paper}",
)  # fmt: skip
TELLING = (
    "I see {}.", "Here is what I have. {}.", "On my side {}.", "{}.", "Hi! In my table {}.", "This is all I know: {}.",
)  # fmt: skip
NOTHING = ("I see nothing at all.", "My table is empty.", "I have nothing to add, sorry.")
ASKED = ("{reviewer} on {paper}", "{reviewer} for {paper}", "{reviewer} with {paper}")
ASKING = (
    "What do you have for {}?", "Can you tell me your scores for {}?", "Do you see {}?", "How good is {}?",
    "What about {}?", "Please give me your numbers for {}.",
)  # fmt: skip
ASKING_ALL = (
    "What scores do you see?", "Can you share your scores?", "What do you have?", "Hi! Which scores can you see?",
    "Please tell me what you see.",
)  # fmt: skip
UNSEEN = ("I can not see {}.", "Nothing is known to me about {}.", "My table has no number for {}.")
PAIR = ("{paper}: {reviewer}", "{reviewer} - {paper}", "{reviewer} reviews {paper}", "{paper} goes to {reviewer}")
PROPOSING = ("Proposal:\n{}", "Proposal: I suggest {}", "My proposal: {}", "Here is a plan:\n{}", "Let us match {}")
REJECTING = ("[reject]", "[reject] I know of a better plan.", "[reject] We can do better.", "[reject] Let me explain.")
IN_A_SENTENCE = (", ", " and ")
"""Possible separators of the names in a question."""
JOINED = (*IN_A_SENTENCE, "; ", "\n")
"""Text between other items."""


@dataclass(frozen=True)
class Speaking(Sharing):
    """Plans and judges as `Sharing` does.

    It also answers questions, may ask first, and may answer told cells with its own.
    """

    asks: float = 0.4
    """Chance that the player begins with a question in the free protocol; in the fixed one it tells at once."""
    answers: float = 0.3
    """Chance that the player answers told cells with its own cells."""
    most: int | None = None
    """Number of cells that the player tells in a message, the largest of its cells in random order; None tells all."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return choose(ACCEPTING if self.agrees(view, view.pending, rng) else REJECTING, rng)
        if view.due is ActionKind.PROPOSE:
            return propose(view, self.plan(view, heard_cells(view), rng), rng)
        if view.history and view.history[-1][0] != view.seat and is_question(view.history[-1][1], NOUNS):
            asked = asked_pairs(view.history[-1][1], view.papers, view.reviewers)
            return answer(view, asked, rng) if asked else tell(view, self._told(view, rng), rng)
        messages = [text for text in view.said(view.seat) if text.startswith("[message]")]
        heard = heard_cells(view)
        sees_nothing = view.rules.visibility == "one_sided" and not own_cells(view)
        if sees_nothing and view.due is ActionKind.MESSAGE:
            return ask(view, [], rng)
        if not messages and not heard and view.due is None and rng.random() < self.asks:
            return ask(view, unasked_cells(view)[: Asker.PAIRS_A_MESSAGE] if rng.random() < 0.5 else [], rng)
        if not messages and (not heard or rng.random() < self.answers):
            return tell(view, self._told(view, rng), rng)
        if messages and (wanted := self._still_wanted(view, messages[-1])):
            return ask(view, wanted[: Asker.PAIRS_A_MESSAGE], rng)
        if view.due is ActionKind.MESSAGE:
            return tell(view, self._told(view, rng), rng)
        return propose(view, self.plan(view, heard, rng), rng)

    def _told(self, view: PlayerView, rng: np.random.Generator) -> Cells:
        """Returns the cells that the player tells; which of equal scores, and the order of the cells, is random."""
        cells = own_cells(view)
        if self.most is None:
            return cells
        order = rng.permutation(len(cells))
        largest = sorted(zip(order, cells.items(), strict=True), key=lambda ranked: (-ranked[1][1], ranked[0]))
        told = [cell for _, cell in largest[: self.most]]
        return dict(told[number] for number in rng.permutation(len(told)))

    def _still_wanted(self, view: PlayerView, message: str) -> list[Cell]:
        """Returns the cells that the player may ask for after its last message.

        These are all unasked cells if the message asked for named cells or got no answer; else there are none.
        """
        in_vain = is_question(message, NOUNS) and not heard_cells(view)
        return unasked_cells(view) if in_vain or asked_pairs(message, view.papers, view.reviewers) else []

    def plan(self, view: PlayerView, heard: Cells, rng: np.random.Generator) -> Matching:
        """Returns the matching that the player proposes.

        If players tell only their largest cells, the others are smaller: each counts as half of the smallest told
        score, or as the mean if that is less.
        """
        table = estimate(view, heard)
        if self.most is not None and heard:
            unknown = np.ones(table.shape, bool)
            for cell in heard.keys() | own_cells(view).keys():
                unknown[cell] = False
            table[unknown] = min(view.mean_score, min(table[cell] for cell in heard) / 2)
        return best_matching(table)[0]


@dataclass(frozen=True)
class SpeakingTeacher(Speaking):
    """A `Speaking` player whose plans ignore the partner's messages, so that self-play must learn to listen."""

    temperature: float = 0.09
    """Softmax temperature of proposals, as a share of the largest score."""
    rejects: float = 0.03
    """Chance that the player rejects a first proposal, whatever its value."""

    def agrees(self, view: PlayerView, offered: Matching, rng: np.random.Generator) -> bool:
        return "[reject]" in view.said(view.seat) or rng.random() >= self.rejects

    def plan(self, view: PlayerView, heard: Cells, rng: np.random.Generator) -> Matching:
        return draw_plan(estimate(view, {}), self.temperature * view.max_score, rng)


def tell(view: PlayerView, cells: Cells, rng: np.random.Generator) -> str:
    """Returns the message that tells these cells."""
    if not cells:
        return f"[message] {choose(NOTHING, rng)}"
    return f"[message] {choose(TELLING, rng).format(_listed(view, cells, TOLD, rng, cells))}"


def ask(view: PlayerView, cells: Sequence[Cell], rng: np.random.Generator) -> str:
    """Returns the message that asks for these cells, or for all cells if `cells` is empty."""
    if not cells:
        return f"[message] {choose(ASKING_ALL, rng)}"
    return f"[message] {choose(ASKING, rng).format(_listed(view, cells, ASKED, rng))}"


def answer(view: PlayerView, asked: Set[Cell], rng: np.random.Generator) -> str:
    """Returns the message that answers a question: it tells the asked cells that the player sees."""
    known = own_cells(view)
    if not asked:
        return tell(view, known, rng)
    told = {cell: known[cell] for cell in sorted(asked) if cell in known}
    unseen = sorted(asked - known.keys())
    sentences = [tell(view, told, rng)] if told else ["[message]"]
    sentences += [choose(UNSEEN, rng).format(_listed(view, unseen, ASKED, rng))] if unseen else []
    return " ".join(sentences)


def propose(view: PlayerView, plan: Matching, rng: np.random.Generator) -> str:
    """Returns the proposal of a plan, with its papers in the order of the board."""
    pairs = sorted(plan, key=lambda pair: pair[1])
    return f"[propose] {choose(PROPOSING, rng).format(_listed(view, pairs, PAIR, rng))}"


def _listed(
    view: PlayerView,
    cells: Iterable[Cell],
    phrasings: Sequence[str],
    rng: np.random.Generator,
    scores: Mapping[Cell, int] | None = None,
) -> str:
    """Returns all cells in one phrasing, with reviewers' first or full names."""
    phrasing, whole = choose(phrasings, rng), rng.random() < 0.3
    return choose(IN_A_SENTENCE if phrasings is ASKED else JOINED, rng).join(
        phrasing.format(
            reviewer=view.reviewers[reviewer] if whole else first_name(view, reviewer),
            paper=short(view.papers[paper]),
            score=(scores or {}).get((reviewer, paper)),
        )
        for reviewer, paper in cells
    )
