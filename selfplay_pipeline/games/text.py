"""From a turn's text to an action. Pure; every error says what to write instead."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence

from selfplay_pipeline.games.types import Action, ActionKind, ErrorKind

TAG = re.compile(r"\s*\[(message|propose|accept|reject)\]", re.IGNORECASE)
LINE_BREAK = re.compile(r"\n|<br\s*/?>", re.IGNORECASE)
BULLET = re.compile(r"^(?:[-*•·]+|\d+[.)])\s*")


class ParseError(Exception):
    """The text is not a legal action; the message is shown to its author."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def untagged(text: str) -> str:
    """What stands behind the tag; all of a text without one."""
    tag = TAG.match(text)
    return text[tag.end() :] if tag else text


def parse_action(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Action:
    """Read the tag that opens the text, and a proposal's lines.

    Raises:
        ParseError: no tag, an empty message, or a proposal that is not a full matching.
    """
    tag = TAG.match(text)
    if tag is None:
        raise ParseError(ErrorKind.NO_TAG, "start with [message], [propose], [accept] or [reject]")
    kind = ActionKind(tag.group(1).lower())
    body = text[tag.end() :].strip()
    if kind is ActionKind.MESSAGE and not body:
        raise ParseError(ErrorKind.EMPTY_MESSAGE, "the message is empty")
    if kind is ActionKind.PROPOSE:
        return Action(kind, parse_proposal(body, papers, reviewers))
    return Action(kind)


def parse_proposal(body: str, papers: Sequence[str], reviewers: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Read `Proposal:` and one `Paper: Reviewer` line per paper, in any order.

    Titles may be full or short ("BLEU"), names full or a first or last name that only one reviewer has. Full
    titles hold a colon, so a line is split at its last one.

    Returns:
        (reviewer, paper) index pairs sorted by reviewer; each index appears once.

    Raises:
        ParseError: names the first bad line, or what is missing.
    """
    head, found, rest = body.partition(":")
    if not found or head.strip().lower() != "proposal":
        raise ParseError(
            ErrorKind.MALFORMED, "write [propose] Proposal: and then one line 'Paper: Reviewer' for each paper"
        )
    lines = [line for line in (_clean(raw) for raw in LINE_BREAK.split(rest)) if line]
    paper_index, reviewer_index = _index(papers, _paper_keys), _index(reviewers, _reviewer_keys)
    pairs: dict[int, int] = {}
    for number, line in enumerate(lines, start=1):
        where = f"line {number} ({line[:80]!r})"
        paper_text, colon, reviewer_text = line.rpartition(":")
        if not colon:
            raise ParseError(ErrorKind.MALFORMED, f"{where} is not of the form 'Paper: Reviewer'")
        paper = _lookup(paper_text, paper_index, "paper", where)
        reviewer = _lookup(reviewer_text, reviewer_index, "reviewer", where)
        if paper in pairs:
            raise ParseError(ErrorKind.REPEATED_NAME, f"{where} repeats the paper {_short(papers[paper])}")
        if reviewer in pairs.values():
            raise ParseError(ErrorKind.REPEATED_NAME, f"{where} repeats the reviewer {reviewers[reviewer]}")
        pairs[paper] = reviewer
    missing = [_short(name) for index, name in enumerate(papers) if index not in pairs]
    if missing:
        raise ParseError(ErrorKind.INCOMPLETE, f"the proposal has no line for {', '.join(missing)}")
    return tuple(sorted((reviewer, paper) for paper, reviewer in pairs.items()))


def format_proposal(matching: Sequence[tuple[int, int]], papers: Sequence[str], reviewers: Sequence[str]) -> str:
    """The canonical text of a proposal: short titles in the board's order, full names."""
    by_paper = sorted(matching, key=lambda pair: pair[1])
    lines = [f"{_short(papers[paper])}: {reviewers[reviewer]}" for reviewer, paper in by_paper]
    return "[propose] Proposal:\n" + "\n".join(lines)


def normalise(name: str) -> str:
    """Case, white space and decoration do not tell names apart."""
    return " ".join(name.replace("*", " ").replace("_", " ").split()).strip(" .,;'\"`").casefold()


def _clean(line: str) -> str:
    return BULLET.sub("", html.unescape(line).strip()).strip()


def _short(title: str) -> str:
    return title.split(":")[0]


def _paper_keys(title: str) -> set[str]:
    return {normalise(title), normalise(_short(title))}


def _reviewer_keys(name: str) -> set[str]:
    return {normalise(name), *(normalise(part) for part in name.split())}


def _index(names: Sequence[str], keys_of: Callable[[str], set[str]]) -> dict[str, list[int]]:
    index: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        for key in keys_of(name):
            index.setdefault(key, []).append(position)
    return index


def _lookup(text: str, index: dict[str, list[int]], what: str, where: str) -> int:
    found = index.get(normalise(text), [])
    if not found:
        raise ParseError(ErrorKind.UNKNOWN_NAME, f"{where} names an unknown {what}: {text.strip()[:60]!r}")
    if len(found) > 1:
        raise ParseError(
            ErrorKind.AMBIGUOUS_NAME, f"{where} names an ambiguous {what}: {text.strip()[:60]!r}; write the full name"
        )
    return found[0]
