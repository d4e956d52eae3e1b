"""Finds questions in messages in plain English, and the answers to them. Pure; the same in any game."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from selfplay_pipeline.games.base import MESSAGE, Asking, Turn
from selfplay_pipeline.games.tags import untagged

SENTENCE = re.compile(r"(?<=[?!])|(?<=[.;])\s|\n| / |<br\s*/?>", re.IGNORECASE)
LIST_ITEM = re.compile(r"(?:^|\n|<br ?/?>)[ \t]*(?:[-*•·]+|\d{1,2}[.)])\s+", re.IGNORECASE)
OPENERS = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|so|and|but|also|then|well|hmm+|yes|yeah|no|hi|hey|hello|cool|great|sure|alright|first|or)\b"
    r"\W*)*(?:(?:what(?:'?s)?|who(?:'?s)?|whom|which|where|why|when|how(?:'?s)?|any(?:one|body)|thoughts|does|did you"
    r"|have you|do (?:you|we|u)|is there|are (?:you|there|we|they)|(?:can|could|would|will|should) (?:you|we|u)"
    r"|you (?:have|got) any|got any)\b(?!'))",
    re.IGNORECASE,
)
"""Openings that make a sentence a question, with or without a question mark."""
REQUESTS = (
    r"\b(?:let me know|tell me|lmk|wondering (?:if|what|who|how|whether)|curious (?:if|what|who|how|about)"
    r"|what (?:do|did|are|is) (?:you|your|u)\b|(?:what|how) about\b|do you (?:have|see|know|think|want|agree|mind)"
    r"|(?:can|could|would) you (?:tell|share|send|give|confirm|list|check)|what do we\b"
    r"|(?:share|give|send|provide|list|tell|show|need|want|like to know|your)\b[^.?!\n]{0,40}?"
    r"\b(?:NOUNS)\b[^.?!\n]{0,20}?\b(?:for|of|on)\b)"
)
"""Pattern of words that make a sentence a question at any position."""
NOUNS = ("scores?", "ratings?", "values?", "numbers?")
"""Nouns for facts that players of any game ask for, as regular expressions."""

Fact = TypeVar("Fact")


@cache
def _requests(nouns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(REQUESTS.replace("NOUNS", "|".join((*NOUNS, *nouns))), re.IGNORECASE)


def questions_in(text: str, nouns: tuple[str, ...] = ()) -> list[str]:
    """Returns the sentences of a message that ask for something.

    If a list follows such a sentence, its items are included.

    Args:
        nouns: Further nouns for facts that players of the game ask for, as regular expressions.
    """
    requests = _requests(nouns)
    asking, found = False, []
    for part in SENTENCE.split(LIST_ITEM.sub("\n- ", untagged(text))):
        if not (sentence := (part or "").strip()):
            continue
        asks = bool(sentence.endswith("?") or OPENERS.search(sentence) or requests.search(sentence))
        asking = asks or (asking and sentence.startswith("- "))
        if asking:
            found.append(sentence)
    return found


def is_question(text: str, nouns: tuple[str, ...] = ()) -> bool:
    """Whether a message asks for anything: by a question mark, a question word at the beginning, or a request."""
    return bool(questions_in(text, nouns))


def count_questions(turns: Sequence[Turn], seat: int) -> Asking:
    """Returns counts of one seat's messages and questions, for a game that does not read facts.

    Other seats' messages are not counted, since nobody knows which of them tell facts.
    """
    said = [untagged(turn.text) for turn in turns if turn.seat == seat and turn.action == MESSAGE]
    return Asking(messages=len(said), questions=sum(map(is_question, said)))


def count_asking(
    turns: Sequence[Turn],
    seat: int,
    asked_in: Callable[[str], set[Fact]],
    told_in: Callable[[str, set[Fact]], set[Fact]],
    hidden: Callable[[Fact], bool],
    nouns: tuple[str, ...] = (),
) -> Asking:
    """Count one seat's questions in an episode, and the answers to them.

    Args:
        asked_in: Function that returns the facts that a message of the seat asks for.
        told_in: Function that returns the facts that a message of another seat tells, given the facts asked for so far.
        hidden: Function that returns True for a fact that the seat does not see itself.
        nouns: Nouns as in `questions_in`.
    """
    asked: set[Fact] = set()
    learned: set[Fact] = set()
    messages = questions = specific = repeated = heard = leaks = 0
    for turn in turns:
        if turn.action != MESSAGE:
            continue
        text = untagged(turn.text)
        if turn.seat != seat:
            heard += 1
            told = told_in(text, asked)
            leaks += bool(told - asked)
            learned |= {fact for fact in told & asked if hidden(fact)}
            continue
        messages += 1
        questions += is_question(text, nouns)
        facts = asked_in(text)
        specific += bool(facts)
        repeated += bool(facts) and facts <= asked
        asked |= facts
    return Asking(messages, questions, specific, len(asked), repeated, len(learned), heard, leaks)
