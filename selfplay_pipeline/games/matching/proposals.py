"""Conversion of a turn's text to an action, and of a proposal's to a matching by the names in it, and back. Pure.

Every error message says what to write instead.

A proposal is a list of pairs: a paper and a reviewer in either order, joined and separated by the few words and marks
below. No other text is allowed, and nothing is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache

from selfplay_pipeline.games import tagged_session, tags
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.tagged_session import Action, parse_tagged
from selfplay_pipeline.games.tags import ELSEWHERE, folded, plain

Matching = tuple[tuple[int, int], ...]
"""(reviewer, paper) index pairs."""

FORM = f"write [propose] Proposal: and then one line 'Paper: Reviewer' for each paper, and {ELSEWHERE}"

REVIEWER, PAPER = 0xE000, 0xE100
"""First placeholder characters, in Unicode's private use area.

They replace names during parsing, so that no name is taken for a word.
"""
NAME = "[\ue000-\ue1ff]"
PRIVATE = re.compile("[\ue000-\uf8ff]")
BRACKETS = re.compile(r"""\[x\]|["'\])}]|[\[({](?!\s*\])""", re.IGNORECASE)
"""Pattern of quotes, brackets and ticked boxes, which are ignored; an empty box is not."""
HEAD = re.compile(r"\A[|\s]*(?:paper|reviewer)[\s|,]+(?:paper|reviewer)\b[\s|:-]*", re.IGNORECASE)
"""Pattern of the first line of a table, and of the rule below it."""
BULLET = r"[\s|>#]*(?:[-*•]\s+)?(?:#?(?P<number>\d{1,2}|[a-p])\b[.:]?[\s|]+)?"
VERB = r"(?:(?:(?:we|let us|let's) )?(?:assign|match|pair|give)\s+)?"
LABEL = r"(?:(?:the )?\b(?:paper|reviewer)\b\s*(?:[:=]\s*)?)?"
LINK = (
    r"(?:\s*(?:[:=,|-]|-+>|=+>|→|⇒|<-+|←|\$?\\rightarrow\$?|\.{2,})\s*|\s+)(?:[-*•]\s+)?"
    r"|\s+(?:(?:is |will be )?(?:assigned |matched )?(?:to|with)|goes to|for|on|by|is reviewed by|(?:will )?review"
    r"|reviews|takes|gets)\s+"
)
BEHIND = r"\s*(?:[.,;|/]\s*)?(?:(?:and\b|&)\s*)?"
PAIR = re.compile(
    rf"{BULLET}{VERB}{LABEL}(?P<one>{NAME})(?P<link>{LINK}){LABEL}(?P<other>{NAME}){BEHIND}", re.IGNORECASE
)


class ErrorKind(StrEnum):
    """Kinds of illegal actions of this game; all games also have `CUT` (`games/base.py`)."""

    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    EMPTY_MESSAGE = tagged_session.EMPTY_MESSAGE
    NOT_NOW = tagged_session.NOT_NOW
    TOO_MANY_WORDS = "too_many_words"
    """A message with more words than `max_words`."""
    MALFORMED = tags.MALFORMED
    AMBIGUOUS_NAME = "ambiguous_name"
    REPEATED_NAME = "repeated_name"
    """A proposal that gives one paper two reviewers, or one reviewer two papers."""
    INCOMPLETE = "incomplete"
    """A proposal without a reviewer for some paper."""


def parse_action(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Action[Matching]:
    """Returns the one action of a turn; text before its tag is ignored.

    Raises:
        ParseError: The turn has no action or several, an empty message, or a proposal that is not a full matching.
    """
    return parse_tagged(text, lambda body: parse_proposal(body, papers, reviewers))


def parse_proposal(body: str, papers: Sequence[str], reviewers: Sequence[str]) -> Matching:
    """Returns the full matching of a proposal.

    Titles may be full or short ("BLEU"). A reviewer's name may be full, a first or last name, or have one initial, as
    long as only one name of the state fits.

    Returns:
        (reviewer, paper) index pairs sorted by reviewer; each index appears once.

    Raises:
        ParseError: The proposal is unclear or incomplete; the message says where.
    """
    text = HEAD.sub("", BRACKETS.sub(" ", _with_marks(body, tuple(papers), tuple(reviewers))))
    found: list[re.Match[str]] = []
    pairs: dict[int, int] = {}
    while (place := found[-1].end() if found else 0) < len(text):
        pair = PAIR.match(text, place)
        if pair is None or not _goes_on(found, pair):
            line = text[place:].strip().partition("\n")[0]
            raise _error(ErrorKind.MALFORMED, f"{_unmarked(line, papers, reviewers)!r} is unclear")
        reviewer, paper = sorted(map(ord, pair.group("one", "other")))
        for mark, known in ((paper, pairs.keys()), (reviewer, pairs.values())):
            if mark in known:
                said, name = (_unmarked(part, papers, reviewers) for part in (pair.group(), chr(mark)))
                raise _error(ErrorKind.REPEATED_NAME, f"{said!r} repeats {name}")
        found.append(pair)
        pairs[paper] = reviewer
    missing = [short(title) for index, title in enumerate(papers) if PAPER + index not in pairs]
    if missing:
        raise _error(ErrorKind.INCOMPLETE, f"the proposal has no reviewer for {', '.join(missing)}")
    return tuple(sorted((reviewer - REVIEWER, paper - PAPER) for paper, reviewer in pairs.items()))


def format_proposal(matching: Sequence[tuple[int, int]], papers: Sequence[str], reviewers: Sequence[str]) -> str:
    """Returns the canonical text of a proposal: short titles in the board's order, full names."""
    return "[propose] Proposal:\n" + "\n".join(map(": ".join, named_pairs(matching, papers, reviewers)))


def named_pairs(
    matching: Sequence[tuple[int, int]], papers: Sequence[str], reviewers: Sequence[str]
) -> list[tuple[str, str]]:
    """Returns (short title, reviewer's full name) pairs in the board's order."""
    return [(short(papers[paper]), reviewers[reviewer]) for reviewer, paper in sorted(matching, key=lambda x: x[1])]


def short(title: str) -> str:
    """Returns a title without its explanation."""
    return title.split(":")[0]


def _goes_on(found: Sequence[re.Match[str]], pair: re.Match[str]) -> bool:
    """Whether a pair may continue the list of pairs found so far.

    The pair must have a reviewer and a paper. If it is numbered, its number must be its position in the list. The gap
    to the previous pair must be at least as strong a separator as the gap between the pair's own two names.
    """
    one, other = sorted(map(ord, pair.group("one", "other")))
    near = bool(found) and _apart(pair.string[found[-1].end("other") : pair.start("one")]) < _apart(pair["link"])
    placed = _number(pair["number"]) in (None, len(found) + 1)
    return one < PAPER <= other and placed and not near


def _apart(gap: str) -> int:
    """Returns the strength of the separation between two names: 2 for a line end, 1 for a mark or `and`, else 0."""
    return 2 if "\n" in gap else 1 if re.search(r"[,;|/]|\band\b", gap, re.IGNORECASE) else 0


def _number(written: str | None) -> int | None:
    """Returns the number of a list entry; for a letter, its position in the alphabet."""
    return written if written is None else int(written) if written.isdigit() else ord(folded(written)) - ord("a") + 1


def _with_marks(text: str, papers: tuple[str, ...], reviewers: tuple[str, ...]) -> str:
    """Returns the text with each name replaced by its placeholder character."""
    pattern, meant = _spellings(papers, reviewers)

    def mark(match: re.Match[str]) -> str:
        marks = meant[_folded(match.group())]
        if len(marks) > 1:
            who = " or ".join(sorted(_unmarked(mark, papers, reviewers) for mark in marks))
            raise _error(ErrorKind.AMBIGUOUS_NAME, f"{match.group()!r} is ambiguous: {who}; write the full name")
        return next(iter(marks))

    return pattern.sub(mark, PRIVATE.sub("?", text))


def _unmarked(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> str:
    """Returns the first 60 characters, with each placeholder replaced by the name of its reviewer or paper."""
    names = {REVIEWER + index: name for index, name in enumerate(reviewers)}
    names |= {PAPER + index: short(title) for index, title in enumerate(papers)}
    return " ".join(text[:60].split()).translate(names)


@lru_cache
def _spellings(papers: tuple[str, ...], reviewers: tuple[str, ...]) -> tuple[re.Pattern[str], dict[str, set[str]]]:
    """Returns a pattern of every spelling of a name, and the placeholder characters of the names that each spelling can
    mean.
    """
    meant: dict[str, set[str]] = {}
    for index, title in enumerate(papers):
        for spelling in (title, short(title)):
            meant.setdefault(_folded(spelling), set()).add(chr(PAPER + index))
    for index, name in enumerate(reviewers):
        first, *others = name.split()
        spellings = {name, *(part for part in name.split() if part[0].isalpha())}
        for last in others[-1:]:
            spellings |= {f"{last}, {first}", f"{first[0]}. {last}", f"{first} {last[0]}."}
        for spelling in spellings:
            meant.setdefault(_folded(spelling), set()).add(chr(REVIEWER + index))
    either = "|".join(re.escape(each).replace(r"\ ", r"\s+") for each in sorted(meant, key=len, reverse=True))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)", re.IGNORECASE), meant


def _folded(name: str) -> str:
    return " ".join(folded(plain(name)).split())


def _error(kind: ErrorKind, what: str) -> ParseError:
    return ParseError(kind, f"{what}; {FORM}")
