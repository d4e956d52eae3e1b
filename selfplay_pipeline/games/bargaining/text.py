"""Conversion of text to splits and values, and back. Pure; every error message says what to write instead."""

from __future__ import annotations

import re
from enum import StrEnum

from selfplay_pipeline.games import tagged_session, tags
from selfplay_pipeline.games.bargaining.rules import ITEMS, Triple
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.questions import SENTENCE, questions_in
from selfplay_pipeline.games.tags import untagged


class ErrorKind(StrEnum):
    """Kinds of illegal actions of this game; all games also have `CUT` (`games/base.py`)."""

    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    EMPTY_MESSAGE = tagged_session.EMPTY_MESSAGE
    NOT_NOW = tagged_session.NOT_NOW
    MALFORMED = tags.MALFORMED
    INCOMPLETE = "incomplete"
    """A proposal that leaves out an item type."""
    REPEATED_ITEM = "repeated_item"
    TOO_MANY = "too_many"
    """A proposal for more items than there are."""


ITEM = r"\b(?P<item>book|hat|ball)s?\b"
NUMBER = r"(?P<number>\d{1,6})(?![\d.]*\d)"
BEHIND = re.compile(rf"{ITEM}\s*(?:[:=]\s*)?{NUMBER}", re.IGNORECASE)
"""Pattern of an item with a number behind it: `book 1`, `books: 1`."""
BEFORE = re.compile(rf"(?<![\d.-]){NUMBER}\s*{ITEM}", re.IGNORECASE)
"""Pattern of an item with a number before it: `1 book`, `2 hats`."""
BETWEEN = re.compile(r"(?:[\s,;.&*_`•]|\band\b|-(?=\s))*", re.IGNORECASE)
"""Pattern of text that is allowed around the items of a proposal."""
WORTH = re.compile(
    rf"{ITEM}(?:\W+(?:are|is|at|worth|have|has|an?|value|valued|of|to|me|each|only|just)\b)+\W+"
    r"(?P<number>\d{1,6}(?![\d.]*\d)|zero|nothing)",
    re.IGNORECASE,
)
"""Pattern of an item with its value: `books are worth 3 each`, `hat is worth nothing`, `value hats at 2`."""
POINTS = re.compile(
    rf"{NUMBER}\s*(?:points?|pts?)\s+(?:for|per|from)\s+(?:(?:each|an?|every|the|my)\s+)*{ITEM}", re.IGNORECASE
)
"""Pattern of points for an item: `3 points for each book`."""
COUNTED = re.compile(rf"\b(?:\d+|one|two|three|four)\s+{ITEM}", re.IGNORECASE)
"""Pattern of a count of items, such as `one ball 2 hats`; applies before the first item that a number follows."""
NO_VALUE = re.compile(
    r"\?|\b(?:total|together|altogether|all|both|your?|yours|take|get|want|keep|give|offer|need|like|not|no|if|how|what\w*)\b"
    r"|n't\b",
    re.IGNORECASE,
)
"""Words that mark a sentence in which the author tells no value: it asks, counts items, adds up values, or is about the
partner.
"""
ASKS_VALUE = re.compile(
    r"\b(?:worth|valu\w*|points?|pts|scores?|much|prefer\w*|matters?|care|important|interest\w*)\b", re.IGNORECASE
)
ALL_VALUES = re.compile(r"\b(?:worth|valu\w*|points?|pts|scores?)\b", re.IGNORECASE)
"""Words that ask for all values if the question names no item."""
ASKS_ITEMS = re.compile(r"\b(?:i|we)\b[^?]*\b(?:take|get|have|keep|give)\b", re.IGNORECASE)
"""Words that ask for items instead of values: `can I have the hats if you prefer the books?`"""


def format_items(numbers: Triple) -> str:
    """Returns items as text, such as `book 1, hat 0, ball 2`."""
    return ", ".join(f"{item} {number}" for item, number in zip(ITEMS, numbers, strict=True))


def format_proposal(share: Triple) -> str:
    """Returns the canonical text of a proposal for a player whose own share is `share`."""
    return f"[propose] Proposal: {format_items(share)}"


def parse_share(body: str, counts: Triple) -> Triple:
    """Returns the writer's share in a proposal, which names each item type once, with a number before or after it.

    Raises:
        ParseError: The proposal has another form, or asks for more items than there are.
    """
    taken: dict[str, int] = {}
    place = 0
    while (place := _behind_separators(body, place)) < len(body):
        found = BEHIND.match(body, place) or BEFORE.match(body, place)
        if found is None:
            raise _error(ErrorKind.MALFORMED, f"'{body[place : place + 40].strip()}' is not clear", counts)
        item, place = tags.folded(found["item"]), found.end()
        if item in taken:
            raise _error(ErrorKind.REPEATED_ITEM, f"the {item} is named twice", counts)
        taken[item] = int(found["number"])
    missing = [item for item in ITEMS if item not in taken]
    if missing:
        raise _error(ErrorKind.INCOMPLETE, f"no number for {', '.join(missing)}", counts)
    book, hat, ball = (taken[item] for item in ITEMS)
    for item, number, count in zip(ITEMS, (book, hat, ball), counts, strict=True):
        if number > count:
            raise _error(ErrorKind.TOO_MANY, f"{item} {number}, but there are {count}", counts)
    return book, hat, ball


def _behind_separators(text: str, place: int) -> int:
    found = BETWEEN.match(text, place)
    return found.end() if found else place


def _error(kind: ErrorKind, what: str, counts: Triple) -> ParseError:
    form = ", ".join(f"{item} 0..{count}" for item, count in zip(ITEMS, counts, strict=True))
    wanted = f"write what you take as '[propose] Proposal: {form}', one number for each item, and {tags.ELSEWHERE}"
    return ParseError(kind, f"{what}; {wanted}")


def told_values(text: str) -> dict[int, int]:
    """Returns the values that a message tells as its author's, by item type; the last mention counts.

    A number after an item is its value, as in the messages of scripted players (`book 1 hat 2 ball 0`). A
    number before an item counts items, unless it counts points. In the 36,596 messages of people in the paper's data
    this finds 185 values, of which 142 are true (the patterns were made on the same messages).
    """
    told: dict[int, int] = {}
    for sentence in SENTENCE.split(untagged(text)):
        if not sentence or NO_VALUE.search(sentence):
            continue
        counted, listed = COUNTED.search(sentence), BEHIND.search(sentence)
        counts = counted and listed and counted.start() < listed.start()
        patterns = (WORTH, POINTS) if counts else (BEHIND, WORTH, POINTS)
        found = [match for pattern in patterns for match in pattern.finditer(sentence)]
        for match in sorted(found, key=lambda match: match.end()):
            number = match["number"]
            told[ITEMS.index(tags.folded(match["item"]))] = int(number) if number.isdigit() else 0
    return told


def asked_items(text: str) -> set[int]:
    """Returns the item types whose value a message asks for; all of them if it asks for values and names none."""
    asked: set[int] = set()
    for question in questions_in(text):
        named = {ITEMS.index(tags.folded(match["item"])) for match in re.finditer(ITEM, question, re.IGNORECASE)}
        bare = not re.sub(rf"{ITEM}|\b(?:and|or|the|your)\b|\W", "", question, flags=re.IGNORECASE)
        if (bare or ASKS_VALUE.search(question)) and not ASKS_ITEMS.search(question):
            asked |= named or (set(range(len(ITEMS))) if ALL_VALUES.search(question) else set())
    return asked
