"""Finds reviewers, papers and scores in a text. Pure; any text is read without an error."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

Cell = tuple[int, int]
"""(reviewer, paper) indices."""
Cells = dict[Cell, int]
"""Score by cell, on the scale of the player who tells it."""

NUMBER_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
"""Scores that a message may also write as words."""
SCORE = rf"(?:\d{{1,9}}(?!\d)|\b(?:{'|'.join(NUMBER_WORDS)})\b)"
"""Pattern of a number that can be a score: at most nine digits, or a word."""
WITHIN = r"[^\w.?!;\n]+"
"""Pattern of the text between two words of a sentence."""
HAS = rf"(?:{WITHIN}(?:s|is|has|have|gets|scores?|a|of|at|on|for|with))*"
"""Pattern of the words that are allowed between a name and its score, or between two names."""
FOR = rf"{WITHIN}(?:on|for|with|at){WITHIN}"
"""Pattern of the text between a score and its paper."""


@dataclass(frozen=True)
class Names:
    """Spellings of the reviewers and papers of a board, in folded case.

    Attributes:
        reviewers, papers: Index by spelling: the whole name, or a part that no other name has.
        any: Pattern of one reviewer or paper.
        told: Pattern of reviewer, paper and score, or of reviewer, score and paper, with few words between.
    """

    reviewers: dict[str, int]
    papers: dict[str, int]
    any: re.Pattern[str]
    told: re.Pattern[str]


@lru_cache
def names_of(papers: tuple[str, ...], reviewers: tuple[str, ...]) -> Names:
    """Returns the spellings of a board's names."""
    rows = _index([{name, *name.split()} for name in reviewers])
    columns = _index([{title, title.split(":")[0]} for title in papers])
    return Names(
        rows,
        columns,
        re.compile(rf"\b(?:{_either([*rows, *columns])})\b"),
        re.compile(
            rf"\b({_either(rows)})\b"
            rf"(?:(?:\W+|{HAS}{WITHIN})({_either(columns)})\b(?:\W+|{HAS}{WITHIN})({SCORE})"
            rf"|{HAS}{WITHIN}({SCORE}){FOR}({_either(columns)})\b)"
        ),
    )


def told_cells(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Cells:
    """Returns the cells that a message tells: `Ava BLEU 5`, `Ava on BLEU is 5`, `Ava has 5 for BLEU` and the like.

    Names may be full or short, punctuation may stand between them, and a score may be a number word. The last mention
    of a cell counts.
    """
    names = names_of(tuple(papers), tuple(reviewers))
    return {
        (names.reviewers[found[1]], names.papers[found[2] or found[5]]): _score(found[3] or found[4])
        for found in names.told.finditer(text.casefold())
    }


def _score(text: str) -> int:
    return NUMBER_WORDS.index(text) if text in NUMBER_WORDS else int(text)


def written(score: int, *, in_words: bool) -> str:
    """Returns a score as a word, if it has one in `NUMBER_WORDS`, or in digits."""
    return NUMBER_WORDS[score] if in_words and score < len(NUMBER_WORDS) else str(score)


def retold(text: str, papers: Sequence[str], reviewers: Sequence[str], scores: Cells) -> str:
    """Returns the text with new scores for the cells that `told_cells` finds in it; all else stays the same.

    A text is returned in folded case if case folding changes its length.
    """
    names, folded = names_of(tuple(papers), tuple(reviewers)), text.casefold()
    text = text if len(text) == len(folded) else folded
    parts, at = [], 0
    for told in names.told.finditer(folded):
        paper, score = (2, 3) if told[2] else (5, 4)
        cell = (names.reviewers[told[1]], names.papers[told[paper]])
        if cell in scores:
            parts += [text[at : told.start(score)], written(scores[cell], in_words=told[score] in NUMBER_WORDS)]
            at = told.end(score)
    return "".join([*parts, text[at:]])


@dataclass(frozen=True)
class Mention:
    """Neighbouring names of reviewers and papers: `Ava or Noah for BLEU`.

    Attributes:
        cells: All combinations of the reviewers and papers; empty if there are several of both, since their pairing is
            then unclear.
        scored: Whether a score stands next to the names, so that the cells are told rather than asked about.
    """

    cells: frozenset[Cell]
    scored: bool


def mentions(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> list[Mention]:
    """Returns the reviewer–paper pairs that a sentence names, from left to right."""
    text, names = text.casefold(), names_of(tuple(papers), tuple(reviewers))
    runs: list[_Run] = []
    for match in names.any.finditer(text):
        is_reviewer = match.group() in names.reviewers
        if not runs or runs[-1].is_reviewer != is_reviewer:
            runs.append(_Run(is_reviewer, match.start()))
        runs[-1].indices.add((names.reviewers if is_reviewer else names.papers)[match.group()])
        runs[-1].end = match.end()
    pairs = list(zip(runs[::2], runs[1::2], strict=False))
    # All scores stand either before or after the names that they belong to; the first score shows which.
    first = re.search(SCORE, text)
    before = bool(pairs and first and first.start() < pairs[0][0].start)
    ends = [0, *(second.end for _, second in pairs), len(text)]
    starts = [*(one.start for one, _ in pairs), len(text)]
    found = []
    for number, (one, other) in enumerate(pairs):
        beside = text[ends[number] : one.start] if before else text[other.end : starts[number + 1]]
        near = re.search(rf"{SCORE}[^,;?]{{0,25}}$" if before else rf"^[^,;?]{{0,25}}?\b{SCORE}", beside)
        found.append(Mention(_cells(one, other), near is not None))
    return found


@dataclass
class _Run:
    """Neighbouring names of one kind."""

    is_reviewer: bool
    start: int
    end: int = 0
    indices: set[int] = field(default_factory=set)


def _cells(one: _Run, other: _Run) -> frozenset[Cell]:
    rows, columns = (one, other) if one.is_reviewer else (other, one)
    if len(rows.indices) > 1 and len(columns.indices) > 1:
        return frozenset()
    return frozenset((row, column) for row in rows.indices for column in columns.indices)


def _index(spellings: Sequence[set[str]]) -> dict[str, int]:
    folded = [{text.casefold() for text in of_one} for of_one in spellings]
    count = Counter(text for of_one in folded for text in of_one)
    return {text: index for index, of_one in enumerate(folded) for text in of_one if count[text] == 1}


def _either(names: Sequence[str] | dict[str, int]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
