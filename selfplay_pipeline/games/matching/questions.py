"""Finds the scores that a message asks for, and those that an answer tells. Pure.

The rule-based shy partner answers by these rules, and a policy's questions are counted by them. Their accuracy on human
messages is measured in `tests/unit/test_questions.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfplay_pipeline.games.base import Asking, Turn
from selfplay_pipeline.games.matching.mentions import Cell, mentions, told_cells
from selfplay_pipeline.games.matching.rules import MatchingState
from selfplay_pipeline.games.questions import count_asking, questions_in

NOUNS = ("affinit(?:y|ies)",)
"""Nouns for facts that players of this game ask for, in addition to the nouns of all games (`games/questions.py`)."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
EXCEPT = re.compile(r"\b(?:besides|beside|except|other than|apart from)\b.*", re.IGNORECASE)
"""Words that exclude all names after them from a question."""


def asked_pairs(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> set[Cell]:
    """Returns the reviewer–paper pairs whose score a message asks for.

    Names may be full or short. Neighbouring names belong together: `Ava or Noah for BLEU` are two pairs. A pair with a
    number next to it was told, not asked for. A question about a reviewer alone, or about a paper alone, names no pair.
    """
    return {
        cell
        for question in questions_in(text, NOUNS)
        for mention in mentions(EXCEPT.sub("", question), papers, reviewers)
        if not mention.scored
        for cell in mention.cells
    }


def asking(turns: Sequence[Turn], state: MatchingState, seat: int) -> Asking:
    """Returns counts of one player's questions in an episode, and of the answers to them."""
    view = _displayed(state, 1 - seat)
    own_numbers: set[str] = set()

    def asked_in(text: str) -> set[Cell]:
        own_numbers.update(NUMBER.findall(text))
        return asked_pairs(text, state.papers, state.reviewers)

    def told_in(text: str, asked: set[Cell]) -> set[Cell]:
        return _told(text, view, state, asked, own_numbers)

    return count_asking(turns, seat, asked_in, told_in, lambda cell: not state.masks[seat][cell], NOUNS)


def _told(text: str, view: dict[Cell, str], state: MatchingState, asked: set[Cell], known: set[str]) -> set[Cell]:
    """Returns the cells whose scores a message reveals, given its author's view.

    A number next to names always tells their cell. Any other number tells the asked cells with that score. Without such
    a cell, it tells all cells with that score, unless the receiver wrote the number earlier or the number may count
    reviewers.
    """
    named = told_cells(text, state.papers, state.reviewers)
    told = {cell for cell, score in named.items() if view.get(cell) == str(score)}
    loose = set(NUMBER.findall(text)) - {str(score) for score in named.values()}
    for number in loose:
        cells = {cell for cell, score in view.items() if score == number}
        counts = float(number) <= state.size
        told |= cells & asked or (cells if not counts and number not in known else set())
    return told


def _displayed(state: MatchingState, seat: int) -> dict[Cell, str]:
    """Returns the cells that a player sees, with their scores as text."""
    return {
        (row, column): str(score)
        for row, scores in enumerate(state.view(seat))
        for column, score in enumerate(scores)
        if score is not None
    }
