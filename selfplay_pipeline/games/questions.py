"""What a message asks for, and what an answer gives away. Pure.

The rule-based shy partner answers by these rules, and a policy's questions are counted by them. How often they
are right about human messages is measured in `tests/fast/test_questions.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from selfplay_pipeline.games.matching import MatchingState
from selfplay_pipeline.games.scripted import told_cells
from selfplay_pipeline.games.text import TAG
from selfplay_pipeline.games.types import ActionKind

Cell = tuple[int, int]
"""(reviewer, paper) indices."""

SENTENCE = re.compile(r"(?<=[?!])|(?<=[.;])\s|\n| / |<br\s*/?>")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
OPENERS = re.compile(
    r"^\W*(?:(?:ok(?:ay)?|so|and|but|also|then|well|hmm+|yes|yeah|no|hi|hey|hello|cool|great|sure|alright|first|or)\b"
    r"\W*)*(?:what|who|whom|which|where|why|when|how(?!ever)|any(?:one|body|thing)?\b(?! of)|thoughts|do (?:you|we|u)\b"
    r"|does|did you|have you|is there|are (?:you|there|we|they)\b"
    r"|(?:can|could|would|will|should) (?:you|we|u)\b|you (?:have|got) any|got any)",
    re.IGNORECASE,
)
"""A sentence that opens like a question is one, with or without its mark."""
REQUESTS = re.compile(
    r"\b(?:let me know|tell me|lmk|wondering (?:if|what|who|how|whether)|curious (?:if|what|who|how|about)"
    r"|what (?:do|did|are|is) (?:you|your|u)\b|(?:what|how) about\b|do you (?:have|see|know|think|want|agree|mind)"
    r"|(?:can|could|would) you (?:tell|share|send|give|confirm|list|check)|what do we\b)",
    re.IGNORECASE,
)
"""Words that ask wherever they stand in a sentence."""
EXCEPT = re.compile(r"\b(?:besides|beside|except|other than|apart from)\b.*", re.IGNORECASE)
"""Names behind these words are those that a question is not about."""


def sentences(text: str) -> list[str]:
    """The parts of a message, each with its own end mark. The tag is left out."""
    return [part.strip() for part in SENTENCE.split(TAG.sub("", text, count=1)) if part and part.strip()]


def questions_in(text: str) -> list[str]:
    """The sentences of a message that ask for something."""
    return [part for part in sentences(text) if part.endswith("?") or OPENERS.search(part) or REQUESTS.search(part)]


def is_question(text: str) -> bool:
    """Whether a message asks for anything: a question mark, a question word in front, a request."""
    return bool(questions_in(text))


def asked_pairs(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> set[Cell]:
    """The reviewer–paper pairs whose score a message asks for.

    Names may be full or short. Neighbouring names belong together: `Ava or Noah for BLEU` are two pairs. A pair that
    is followed by a number was told, not asked for; a question about a reviewer alone, or a paper, names no pair.
    """
    return {
        pair
        for question in questions_in(text)
        for pair in _pairs(question, papers, reviewers) - told_cells(question, papers, reviewers).keys()
    }


def _pairs(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> set[Cell]:
    """Each run of reviewers with the run of papers beside it, from left to right."""
    runs: list[tuple[bool, list[int]]] = []
    for is_reviewer, index in _mentions(EXCEPT.sub("", text), papers, reviewers):
        if runs and runs[-1][0] == is_reviewer:
            runs[-1][1].append(index)
        else:
            runs.append((is_reviewer, [index]))
    pairs: set[Cell] = set()
    for (first_is_reviewer, first), (_, second) in zip(runs[::2], runs[1::2], strict=False):
        rows, columns = (first, second) if first_is_reviewer else (second, first)
        pairs |= {(row, column) for row in rows for column in columns}
    return pairs


def _mentions(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Iterator[tuple[bool, int]]:
    """The names in a text, in order, as (is a reviewer, index)."""
    names, pattern = _names(tuple(papers), tuple(reviewers))
    for match in pattern.finditer(text):
        yield names[match.group().casefold()]


@lru_cache
def _names(papers: tuple[str, ...], reviewers: tuple[str, ...]) -> tuple[dict[str, tuple[bool, int]], re.Pattern[str]]:
    """What each spelling that only one has stands for, and the pattern that finds them."""
    spelled = [((True, index), {name, *name.split()}) for index, name in enumerate(reviewers)]
    spelled += [((False, index), {title, title.split(":")[0]}) for index, title in enumerate(papers)]
    count = Counter(part.casefold() for _, parts in spelled for part in parts)
    names = {part.casefold(): who for who, parts in spelled for part in parts if count[part.casefold()] == 1}
    alternatives = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return names, re.compile(rf"\b(?:{alternatives})\b", re.IGNORECASE)


class Turn(Protocol):
    """What is read of a turn; `generate/records.py: TurnRecord` is one."""

    @property
    def player(self) -> int: ...
    @property
    def text(self) -> str: ...
    @property
    def action(self) -> ActionKind: ...


@dataclass(frozen=True)
class Asking:
    """How one player of a play asked, and what its partner answered. Counts; only legal messages are looked at."""

    messages: int = 0
    questions: int = 0
    """Messages that ask for something."""
    specific: int = 0
    """Of these, messages that ask for the score of a reviewer–paper pair."""
    pairs: int = 0
    """Different pairs asked for."""
    repeated: int = 0
    """Specific questions that ask for nothing but pairs asked for before."""
    learned: int = 0
    """Cells hidden from the player that the partner told after having been asked for them."""
    partner_messages: int = 0
    leaks: int = 0
    """The partner's messages that told a score nobody had asked for."""


def asking(turns: Sequence[Turn], state: MatchingState, player: int) -> Asking:
    """Count one player's questions in a play, and what they brought."""
    view = _displayed(state, 1 - player)
    asked: set[Cell] = set()
    learned: set[Cell] = set()
    own_numbers: set[str] = set()
    messages = questions = specific = repeated = heard = leaks = 0
    for turn in turns:
        if turn.action is not ActionKind.MESSAGE:
            continue
        if turn.player != player:
            heard += 1
            told = _told(turn.text, view, state, asked, own_numbers)
            leaks += bool(told - asked)
            learned |= {cell for cell in told & asked if not state.masks[player][cell]}
            continue
        messages += 1
        questions += is_question(turn.text)
        pairs = asked_pairs(turn.text, state.papers, state.reviewers)
        specific += bool(pairs)
        repeated += bool(pairs) and pairs <= asked
        asked |= pairs
        own_numbers.update(NUMBER.findall(turn.text))
    return Asking(messages, questions, specific, len(asked), repeated, len(learned), heard, leaks)


def _told(text: str, view: dict[Cell, str], state: MatchingState, asked: set[Cell], known: set[str]) -> set[Cell]:
    """The cells whose score a message of their owner gives away.

    Where the names stand beside the number the cell is certain. Any other number tells an asked cell of that score,
    else some cell that was not asked for, unless the hearer had said the number itself.
    """
    named = told_cells(text, state.papers, state.reviewers)
    told = {cell for cell, score in named.items() if view.get(cell) == str(score)}
    loose = set(NUMBER.findall(TAG.sub("", text, count=1))) - {str(score) for score in named.values()}
    for number in loose:
        cells = {cell for cell, score in view.items() if score == number}
        told |= cells & asked or (cells if number not in known else set())
    return told


def _displayed(state: MatchingState, player: int) -> dict[Cell, str]:
    """What a player sees, as it would say it."""
    return {
        (row, column): str(score)
        for row, scores in enumerate(state.view(player))
        for column, score in enumerate(scores)
        if score is not None
    }
