"""From the words of a proposal to a matching, by the names in them, and back. Pure.

A proposal is whatever names each paper once beside one reviewer: lines in either order, a list, a table, JSON, plain
sentences. It is read from left to right as names that follow each other in twos, and refused wherever the words or
separators around the names leave open who belongs to what. Nothing is guessed.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.actions import ErrorKind
from selfplay_pipeline.games.tags import DENIALS

Matching = tuple[tuple[int, int], ...]
"""(reviewer, paper) index pairs."""

FORM = "write [propose] Proposal: and then one line 'Paper: Reviewer' for each paper"

_LINKS = """
about and are as assign assigned assigning assignment assigns at be because best by covers does first for get gets
give given go goes good handle handles has have he in is it item let lets make match matched matches name next of on
pair paired pairs paper papers put receives review reviewed reviewer reviewers reviewing reviews rightarrow score
scored scores select selected she should since suggest suggested take taken takes that the their them then they think
this title to value we which while who will with would
"""
LINKS = frozenset(_LINKS.split())
"""Words that may stand beside names, or between the two of a pair. Others there may be part of an unknown name."""
_LEADS = """
a about account after again agree agreed all allocation am an another answer assignments attempt available based been
begin below board both by can cells certain clear combination combine combined combining conclusion confidence
consider considering csv current d data decided decision discussed discussion do enough everything final find
following formal format from given go good got great have hello here hey hi highest hope how html i info information
input into itemize json know knowledge known ll m markdown matches matching matchings maximize maximizes maximizing
maximum me more most much my new no now offer ok okay optimal our overall pairing pairings plain plan plus point
points possible proposal propose proposed proposing proposition propuesta provided python re ready reason reasonable
result right scores scoring see seem seems seen shared sharing since so solid solution some something strategy submit
suggestion sum summary sure table tabular taking text thank thanks therefore these think thinking those thought thus
together told total try understood updated us use uses using values ve very vorschlag way well what xml yaml yes you
your
"""
LEADS = LINKS | frozenset(_LEADS.split())
"""Words that may stand before the first pair where nothing announces a proposal: others may say that none follows."""
ANNOUNCED = re.compile(
    r"\b(?:propos|assign|match|pair(?:s|ings?)\b|plan|suggest|recommend|allocat|finali[sz]e|solution)", re.IGNORECASE
)
QUOTED = re.compile(
    r"\b(?:your|last|previous\w*|earlier|yesterday|old|was|were|had|later|soon|before|may|might|could|against|oppos\w*"
    r"|hates?|dislikes?|veto\w*|conflicts?|scores? of|tell)\b",
    re.IGNORECASE,
)
"""Words before the first pair by which an announced proposal may be another's, or of another time."""
MARKED_OUT = re.compile(r"[≠❌❎✗✘✖🚫⛔]|!=|~~|\[ \]|</?(?:s|del|strike)\b|<!--", re.IGNORECASE)
"""Marks that do the same; some of them are markup, which reading removes."""
DOUBTS = re.compile(r"\b(?:or|if|but|avoid)\b|(?<!\?)\?(?!\?)", re.IGNORECASE)
"""What leaves open whether the names around it are meant. Two question marks are a hidden score."""
OWN_SCORES = re.compile(r"\bmy (?:\w+ )?scores?(?: are| is)?:?\s*$", re.IGNORECASE)
"""Behind this stand scores, and no proposal."""
INVITATION = re.compile(r"\b(?:let me know|if (?:you|this|that|it|there)|unless you)\b[^.!?\n]*", re.IGNORECASE)
"""The partner may be asked to disagree, behind the last pair."""

LINE_END = re.compile(r"\n|\\n|</?(?:br|p|div|li|ul|ol|tr|table|thead|tbody)\b[^<>]*>", re.IGNORECASE)
INLINE = re.compile(r"</?(?:b|i|u|em|strong|code|pre|span|t[dh])\b[^<>]*>|[*_`~\u200b]", re.IGNORECASE)
SPELLINGS = str.maketrans("‘’‚“”„«»‐‑‒–—―−", '\'\'\'"""""-------')
BRACKETS = re.compile(r"\([^()\n]*\)|\[[^\[\]\n]*\]")
WORD = re.compile(r"[^\W\d_]\w*")
SENTENCE_END = re.compile(r"\n|[.!;:](?=\s)")
WORD_OR_LINE = re.compile(r"[^\W\d_]|\n")
SEPARATOR = re.compile(r"[,;|/]")
LINES, FAR = 2, 9
"""How far names on different lines stand apart, and how far the first and the last from what is not there."""


@dataclass(frozen=True)
class Name:
    """A reviewer or a paper of the board."""

    is_reviewer: bool
    index: int
    shown: str
    words: frozenset[str]
    """All words of the name or title, in folded case."""


@dataclass(frozen=True)
class Mention:
    """Where a text names one."""

    name: Name
    start: int
    end: int


def parse_proposal(body: str, papers: Sequence[str], reviewers: Sequence[str]) -> Matching:
    """Read a full matching.

    Titles may be full or short ("BLEU"), names full, a first or last name, or a beginning of three letters or more,
    as long as only one name on the board can be meant.

    Returns:
        (reviewer, paper) index pairs sorted by reviewer; each index appears once.

    Raises:
        ParseError: says what was understood and what is unclear or missing.
    """
    text = plain(body)
    pairs: dict[int, int] = {}
    try:
        found = _mentions(text, tuple(papers), tuple(reviewers))
        _check_meant(body, text, found)
        _read_pairs(text, found, pairs)
        missing = [short(title) for index, title in enumerate(papers) if index not in pairs]
        if missing:
            raise ParseError(ErrorKind.INCOMPLETE, f"the proposal has no reviewer for {', '.join(missing)}")
    except ParseError as error:
        read = ", ".join(f"{short(papers[paper])}: {reviewers[reviewer]}" for paper, reviewer in pairs.items())
        understood = f" (understood so far: {read})" if read else ""
        raise ParseError(error.kind, f"{error}{understood}; {FORM}") from None
    return tuple(sorted((reviewer, paper) for paper, reviewer in pairs.items()))


def format_proposal(matching: Sequence[tuple[int, int]], papers: Sequence[str], reviewers: Sequence[str]) -> str:
    """The canonical text of a proposal: short titles in the board's order, full names."""
    return "[propose] Proposal:\n" + "\n".join(map(": ".join, named_pairs(matching, papers, reviewers)))


def named_pairs(
    matching: Sequence[tuple[int, int]], papers: Sequence[str], reviewers: Sequence[str]
) -> list[tuple[str, str]]:
    """Short titles in the board's order, each with its reviewer's full name."""
    return [(short(papers[paper]), reviewers[reviewer]) for reviewer, paper in sorted(matching, key=lambda x: x[1])]


def short(title: str) -> str:
    """A title without its explanation."""
    return title.split(":")[0]


def plain(text: str) -> str:
    """The text without markup: plain quotes, dashes, colons and line ends, no emphasis."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).translate(SPELLINGS)
    return INLINE.sub(" ", LINE_END.sub("\n", text))


@dataclass(frozen=True)
class _Names:
    """A board's names: what finds the spelled-out ones, whom each spelling may mean, and the words of all names."""

    pattern: re.Pattern[str]
    meant: dict[str, set[Name]]
    parts: dict[str, set[Name]]


@lru_cache
def _names(papers: tuple[str, ...], reviewers: tuple[str, ...]) -> _Names:
    meant: dict[str, set[Name]] = {}
    parts: dict[str, set[Name]] = {}
    for is_reviewer, names in ((True, reviewers), (False, papers)):
        for index, written in enumerate(names):
            whole = _folded(written)
            name = Name(is_reviewer, index, written if is_reviewer else short(written), frozenset(WORD.findall(whole)))
            known_as = whole if is_reviewer else _folded(short(written))
            for part in known_as.split():
                parts.setdefault(part, set()).add(name)
            spellings = {whole, known_as, *(part for part in known_as.split() if is_reviewer and WORD.match(part))}
            for spelling in spellings:
                meant.setdefault(spelling, set()).add(name)
    # A word such as "Reviewer" that many names share and that links names is no name.
    meant = {spelling: names for spelling, names in meant.items() if len(names) == 1 or spelling not in LINKS}
    longest_first = sorted(meant, key=len, reverse=True)
    either = "|".join(r"[^\S\n]+".join(map(re.escape, spelling.split())) for spelling in longest_first)
    # What hangs together by a hyphen is one word, so that BLEU-2 is not BLEU; any other word may be an abbreviation.
    pattern = rf"(?<!\w)(?<!\w-)(?:({either})|[^\W\d_]\w{{2,}})(?!\w)(?!-\w)"
    return _Names(re.compile(pattern, re.IGNORECASE), meant, parts)


def _folded(name: str) -> str:
    return " ".join(plain(name).casefold().split())


def _mentions(text: str, papers: tuple[str, ...], reviewers: tuple[str, ...]) -> list[Mention]:
    """The names in a text, from left to right; a name said twice with no word between (`Li, Ava`) is one."""
    names, found = _names(papers, reviewers), list[Mention]()
    for match in names.pattern.finditer(text):
        spelled = " ".join(match.group().casefold().split())
        meant = names.meant.get(spelled) if match[1] else _abbreviated(match.group(), names)
        if not meant:
            continue
        if len(meant) > 1:
            who = " or ".join(sorted(name.shown for name in meant))
            raise ParseError(ErrorKind.AMBIGUOUS_NAME, f"{match.group()!r} is ambiguous: {who}; write the full name")
        (name,), start = meant, match.start()
        if found and found[-1].name is name and not WORD_OR_LINE.search(text[found[-1].end : start]):
            start = found.pop().start
        found.append(Mention(name, start, match.end()))
    return found


def _abbreviated(word: str, names: _Names) -> set[Name]:
    """Whom a capitalised word of three letters or more may be the beginning of."""
    folded = word.casefold()
    if not word[0].isupper() or folded in LINKS:
        return set()
    return set().union(*(owners for part, owners in names.parts.items() if part.startswith(folded)))


def _check_meant(body: str, text: str, found: list[Mention]) -> None:
    """The words around the pairs neither deny nor quote them; a name may be part of a word that would."""
    start, end = (found[0].start, found[-1].end) if found else (len(text), len(text))
    lead, tail = text[:start], text[end:]
    denial = DENIALS.search(text[:end] + INVITATION.sub("", tail)) or MARKED_OUT.search(html.unescape(body))
    doubt = denial or DOUBTS.search(lead) or OWN_SCORES.search(lead)
    strange = [word for word in WORD.findall(lead.casefold()) if word not in LEADS and len(word) > 1]
    if strange and ANNOUNCED.search(lead):
        strange = QUOTED.findall(lead)
    if doubt or strange:
        what = doubt.group() if doubt else strange[0]
        raise ParseError(
            ErrorKind.MALFORMED, f"{what!r} leaves open whether this is meant; write nothing but the pairs"
        )


def _read_pairs(text: str, found: list[Mention], pairs: dict[int, int]) -> None:
    """Read neighbouring names in twos into `pairs`, reviewer by paper."""
    if not found:
        raise ParseError(ErrorKind.MALFORMED, "the proposal names no paper or reviewer of the board")
    lead, tail = SENTENCE_END.split(text[: found[0].start])[-1], SENTENCE_END.split(text[found[-1].end :])[0]
    inner = [_gap(text[one.end : other.start]) for one, other in pairwise(found)]
    gaps = [_gap(lead, apart=FAR), *inner, _gap(tail, apart=FAR)]
    for number in range(0, len(found), 2):
        one, other = found[number], found[min(number + 1, len(found) - 1)]
        before, between, behind = gaps[number], gaps[number + 1], gaps[min(number + 2, len(found))]
        # Of three names in a row the middle one belongs to the nearer one. Pairs are written alike: all share a line or
        # none does, and all have words between their names or none has; one that differs says something else.
        torn = between.apart > min(before.apart, behind.apart) or _shape(between) != _shape(gaps[1])
        if one.name.is_reviewer == other.name.is_reviewer or torn:
            raise _alone(text, one)
        _check_gaps(text, one, before, between)
        _check_gaps(text, other, between, behind)
        strange = [word for word in between.words if not (_fits(word, one.name) or _fits(word, other.name))]
        if strange:
            raise ParseError(ErrorKind.MALFORMED, f"{' '.join(strange)!r} in {_line(text, one)!r} is unclear")
        reviewer, paper = (one.name, other.name) if one.name.is_reviewer else (other.name, one.name)
        if pairs.get(paper.index, reviewer.index) != reviewer.index:
            raise ParseError(ErrorKind.REPEATED_NAME, f"{_line(text, one)!r} repeats the paper {paper.shown}")
        if paper.index not in pairs and reviewer.index in pairs.values():
            raise ParseError(ErrorKind.REPEATED_NAME, f"{_line(text, one)!r} repeats the reviewer {reviewer.shown}")
        pairs[paper.index] = reviewer.index


@dataclass(frozen=True)
class Gap:
    """What stands between two names.

    Attributes:
        apart: how far it keeps them apart.
        words: its words, brackets left out, in folded case.
        first, last: words with nothing but space between them and the name in front, and behind.
        doubt: what leaves open whether the names are meant.
    """

    apart: int
    words: tuple[str, ...]
    first: str
    last: str
    doubt: str


@lru_cache(1024)
def _gap(text: str, apart: int | None = None) -> Gap:
    if apart is None:
        apart = LINES if "\n" in text else 1 if SEPARATOR.search(text) else 0
    said, first = BRACKETS.sub(" ", text), re.match(r"[^\S\n]+([^\W\d_]\w*)", text)
    doubt = DOUBTS.search(text)
    return Gap(
        apart=apart,
        words=tuple(WORD.findall(said.casefold())),
        first=first[1].casefold() if first else "",
        last=_last_word(text.rpartition("\n")[2]).casefold(),
        doubt=doubt.group() if doubt else "",
    )


def _last_word(line: str) -> str:
    """The word, or the initial with its point, that a line ends with before a space."""
    if not line[-1:].isspace() or not line.strip():
        return ""
    token = line.split()[-1]
    word = re.split(r"\W", token.removesuffix("."))[-1]
    return word if WORD.match(word) and (len(word) == 1 or not token.endswith(".")) else ""


def _shape(gap: Gap) -> tuple[bool, bool]:
    """What the gaps within all pairs have in common."""
    return gap.apart == LINES, not LINKS.isdisjoint(gap.words)


def _check_gaps(text: str, mention: Mention, before: Gap, behind: Gap) -> None:
    """Neither a doubt nor what may be another part of the name stands beside it."""
    if doubt := before.doubt or behind.doubt:
        line = _line(text, mention)
        raise ParseError(ErrorKind.MALFORMED, f"{doubt!r} in {line!r} leaves open what is meant")
    for word in (before.last, behind.first):
        if word and not _fits(word, mention.name):
            line = _line(text, mention)
            raise ParseError(ErrorKind.UNKNOWN_NAME, f"{word!r} beside {mention.name.shown} in {line!r} is unknown")


def _fits(word: str, name: Name) -> bool:
    """Whether a word may stand beside a name: it links names, or begins another part of this one."""
    return word in LINKS or any(part.startswith(word) for part in name.words)


def _alone(text: str, mention: Mention) -> ParseError:
    """The error that a name has no partner beside it."""
    line, wanted = _line(text, mention), "paper" if mention.name.is_reviewer else "reviewer"
    others = {word.casefold() for word in WORD.findall(line)} - LINKS - mention.name.words
    if others:
        return ParseError(ErrorKind.UNKNOWN_NAME, f"no known {wanted} stands beside {mention.name.shown} in {line!r}")
    return ParseError(ErrorKind.INCOMPLETE, f"no {wanted} stands beside {mention.name.shown} in {line!r}")


def _line(text: str, mention: Mention) -> str:
    """The line that a name stands in."""
    start, end = text.rfind("\n", 0, mention.start) + 1, text.find("\n", mention.end)
    return " ".join(text[start : end if end >= 0 else None].split())[:80]
