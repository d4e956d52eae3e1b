"""What a message asks for, and what an answer gives away. Pure.

The rule-based shy partner answers by these rules, and a policy's questions are counted by them. How often they
are right about human messages is measured in `tests/fast/test_questions.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from selfplay_pipeline.games.base import MESSAGE, Asking, Turn
from selfplay_pipeline.games.matching.mentions import Cell, mentions, told_cells
from selfplay_pipeline.games.matching.rules import MatchingState
from selfplay_pipeline.games.tags import untagged

SENTENCE = re.compile(r"(?<=[?!])|(?<=[.;])\s|\n| / |<br\s*/?>", re.IGNORECASE)
LIST_ITEM = re.compile(r"(?:^|\n|<br ?/?>)[ \t]*(?:[-*•·]+|\d{1,2}[.)])\s+", re.IGNORECASE)
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OPENERS = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|so|and|but|also|then|well|hmm+|yes|yeah|no|hi|hey|hello|cool|great|sure|alright|first|or)\b"
    r"\W*)*(?:(?:what(?:'?s)?|who(?:'?s)?|whom|which|where|why|when|how(?:'?s)?|any(?:one|body)|thoughts|does|did you"
    r"|have you|do (?:you|we|u)|is there|are (?:you|there|we|they)|(?:can|could|would|will|should) (?:you|we|u)"
    r"|you (?:have|got) any|got any)\b(?!'))",
    re.IGNORECASE,
)
"""A sentence that opens like a question is one, with or without its mark."""
REQUESTS = re.compile(
    r"\b(?:let me know|tell me|lmk|wondering (?:if|what|who|how|whether)|curious (?:if|what|who|how|about)"
    r"|what (?:do|did|are|is) (?:you|your|u)\b|(?:what|how) about\b|do you (?:have|see|know|think|want|agree|mind)"
    r"|(?:can|could|would) you (?:tell|share|send|give|confirm|list|check)|what do we\b"
    r"|(?:share|give|send|provide|list|tell|show|need|want|like to know|your)\b[^.?!\n]{0,40}?"
    r"\b(?:scores?|ratings?|values?|numbers?|affinit(?:y|ies))\b[^.?!\n]{0,20}?\b(?:for|of|on)\b)",
    re.IGNORECASE,
)
"""Words that ask wherever they stand in a sentence."""
EXCEPT = re.compile(r"\b(?:besides|beside|except|other than|apart from)\b.*", re.IGNORECASE)
"""Names behind these words are those that a question is not about."""


def questions_in(text: str) -> list[str]:
    """The sentences of a message that ask for something; items of a list that follows one ask too."""
    asking, found = False, []
    for part in SENTENCE.split(LIST_ITEM.sub("\n- ", untagged(text))):
        if not (sentence := (part or "").strip()):
            continue
        asks = bool(sentence.endswith("?") or OPENERS.search(sentence) or REQUESTS.search(sentence))
        asking = asks or (asking and sentence.startswith("- "))
        if asking:
            found.append(sentence)
    return found


def is_question(text: str) -> bool:
    """Whether a message asks for anything: a question mark, a question word in front, a request."""
    return bool(questions_in(text))


def asked_pairs(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> set[Cell]:
    """The reviewer–paper pairs whose score a message asks for.

    Names may be full or short. Neighbouring names belong together: `Ava or Noah for BLEU` are two pairs. A pair that
    has a number beside it was told, not asked for; a question about a reviewer alone, or a paper, names no pair.
    """
    return {
        cell
        for question in questions_in(text)
        for mention in mentions(EXCEPT.sub("", question), papers, reviewers)
        if not mention.scored
        for cell in mention.cells
    }


def asking(turns: Sequence[Turn], state: MatchingState, player: int) -> Asking:
    """Count one player's questions in a play, and what they brought."""
    view = _displayed(state, 1 - player)
    asked: set[Cell] = set()
    learned: set[Cell] = set()
    own_numbers: set[str] = set()
    messages = questions = specific = repeated = heard = leaks = 0
    for turn in turns:
        if turn.action != MESSAGE:
            continue
        text = untagged(turn.text)
        if turn.player != player:
            heard += 1
            told = _told(text, view, state, asked, own_numbers)
            leaks += bool(told - asked)
            learned |= {cell for cell in told & asked if not state.masks[player][cell]}
            continue
        messages += 1
        questions += is_question(text)
        pairs = asked_pairs(text, state.papers, state.reviewers)
        specific += bool(pairs)
        repeated += bool(pairs) and pairs <= asked
        asked |= pairs
        own_numbers.update(NUMBER.findall(text))
    return Asking(messages, questions, specific, len(asked), repeated, len(learned), heard, leaks)


def _told(text: str, view: dict[Cell, str], state: MatchingState, asked: set[Cell], known: set[str]) -> set[Cell]:
    """The cells whose score a message of their owner gives away.

    Where the names stand beside the number the cell is certain. Any other number tells an asked cell of that score,
    else some cell that was not asked for, unless the hearer had said the number itself or it may count reviewers.
    """
    named = told_cells(text, state.papers, state.reviewers)
    told = {cell for cell, score in named.items() if view.get(cell) == str(score)}
    loose = set(NUMBER.findall(text)) - {str(score) for score in named.values()}
    for number in loose:
        cells = {cell for cell, score in view.items() if score == number}
        counts = float(number) <= state.size
        told |= cells & asked or (cells if not counts and number not in known else set())
    return told


def _displayed(state: MatchingState, player: int) -> dict[Cell, str]:
    """What a player sees, as it would say it."""
    return {
        (row, column): str(score)
        for row, scores in enumerate(state.view(player))
        for column, score in enumerate(scores)
        if score is not None
    }
