"""Parser of turns with a tag, for games in which a turn is one of four actions. Pure.

Text before a tag is free and is ignored. After the tag of a decision only its content may stand, with openings and
closings from the lists below. Error messages show the expected form.
"""

from __future__ import annotations

import html
import re
import unicodedata
from enum import StrEnum

from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.figures import Figure


class ActionKind(StrEnum):
    """Actions of a tagged turn."""

    MESSAGE = "message"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"


PROPOSALS = Figure("proposals", "proposals an episode", lambda e: sum(t.action == ActionKind.PROPOSE for t in e.turns))
"""Figure that every game with tags has: proposals per episode."""

NO_TAG = "no_tag"
"""Error kind of a turn without a tag at a position where an action may start."""
SEVERAL_ACTIONS = "several_actions"
"""Error kind of a turn with tags of different actions."""
MALFORMED = "malformed"
"""Error kind of a decision with further words that are not allowed after its tag."""
TAG = re.compile(r"[\[［【][\s*_`\\]*(message|propose|proposal|accept|reject)[\s*_`\\]*[\]］】]", re.IGNORECASE)
EMPHASIS = '*_`~"'
AROUND = EMPHASIS + " \t\r\n'“”‘’(#>\\-"
"""Characters that may decorate a tag."""
ELSEWHERE = "say anything else before the tag or in a [message]"

OPENINGS = (
    r"(?:here(?: is|'s) )?(?:(?:my|a|the) )?(?:(?:new|final) )?(?:proposal|assignments?|plan)",
    r"i (?:would like to )?(?:propose|suggest)(?: that| the following| this)?",
    "how about(?: this)?", "based on our discussion", "ok(?:ay)?", "great", "sure", "thanks", "hello", "hi",
)  # fmt: skip
"""Phrases that are allowed between the tag of a proposal and its content, as regular expressions."""
CLOSINGS = {
    ActionKind.PROPOSE: (
        r"what do you think\??",
        "(?:please )?let me know(?: what you think| if (?:you agree|this works(?: for you)?))?",
        r"do you agree\??", r"does (?:this|that) (?:work|sound good)(?: for you| to you)?\??",
        "i hope (?:that )?you agree", "thanks", "thank you",
    ),
    ActionKind.ACCEPT: (
        "great", "good", "perfect", "ok(?:ay)?", "deal", "good plan", "i agree", "agreed", "thanks", "thank you",
        "i accept(?: (?:your|this|the) (?:proposal|plan))?",
        "(?:this |that )?(?:works(?: for me)?|(?:looks|sounds) good(?: to me)?)",
    ),
    ActionKind.REJECT: (
        "sorry", "thanks", "(?:i think )?we can do better", "i know of a better (?:plan|split)", "let me explain",
        "no", "i reject (?:your|this|the) (?:proposal|plan)",
    ),
}  # fmt: skip
"""Phrases that are allowed after the content of a decision, as regular expressions, by action."""
_OPENING = re.compile(rf"""(?:[\s:,.!#>"'{{-]*\b(?:{"|".join(OPENINGS)})\b)*["']?[\s:,.!#>]*""", re.IGNORECASE)
_CLOSING = {
    kind: re.compile(rf"(?:^|[\s.,;!?])(?:{'|'.join(phrases)})[.,!]?$", re.IGNORECASE)
    for kind, phrases in CLOSINGS.items()
}
IN_A_ROW, LONGEST = 3, 80
"""Limits on closing phrases: how many may follow each other, and how many characters each may have."""

LINE_END = re.compile(
    r"^[^\S\n]*(?:```(?:json|text)?|-{3,})[^\S\n]*$|\r|\\n|</?(?:br|p|div|li|[uo]l|tr|table) ?/?>", re.I | re.M
)
INLINE = re.compile(
    r"</?(?:b|i|u|em|strong|code|pre|t[dh])>|(?<![*_`])[*_`]{1,3}(?=[^\s*_`])|(?<=[^\s*_`])[*_`]{1,3}(?![*_`])", re.I
)
"""Pattern of emphasis. A mark without a partner is kept in the text, because it may be part of a list."""
DOTTED = str.maketrans("İı", "ii")
"""Letters that `re.IGNORECASE` takes for an i, and `str.casefold` does not."""
SPELLINGS = str.maketrans("‘’‚“”„«»‐‑‒–—―−", '\'\'\'"""""-------')


def tagged(text: str) -> tuple[ActionKind, str]:
    """Returns the action and its content: the words of a message, or a proposal without openings and closings.

    [message] counts wherever it stands. The other three tags are decisions: they start the turn, or follow a finished
    sentence or an empty line.

    Raises:
        ParseError: The text has no action or several, or has words behind an answer.
    """
    starts = [(_kind(tag), tag, *_start(text[: tag.start()])) for tag in TAG.finditer(text)]
    acting = [each for each in starts if each[0] is ActionKind.MESSAGE or each[2]]
    if not acting:
        raise ParseError(NO_TAG, "start with [message], [propose], [accept] or [reject]")
    kind, tag, _, finished = acting[0]
    several = {f"[{other}]" for other, *_ in acting}
    if len(several) > 1:
        named = " and ".join(sorted(several))
        raise ParseError(SEVERAL_ACTIONS, f"a turn is one action, and this one has {named}; write one")
    if kind is ActionKind.MESSAGE:
        return kind, _behind(tag)
    if not finished:
        raise ParseError(NO_TAG, f"[{kind}] stands behind an unfinished sentence; start the turn with it")
    content = _content(kind, text[tag.end() :])
    if content and kind is not ActionKind.PROPOSE:
        raise ParseError(MALFORMED, f"{content[:60]!r} stands behind [{kind}]; write [{kind}] alone, {ELSEWHERE}")
    return kind, content


def _kind(tag: re.Match[str]) -> ActionKind:
    name = folded(tag[1])
    return ActionKind.PROPOSE if name == "proposal" else ActionKind(name)


def _start(before: str) -> tuple[bool, bool]:
    """Returns whether an action may start after this text, and whether the text is a finished sentence."""
    said = before.rstrip(AROUND)
    line_ends = before[len(said) :].count("\n")
    finished = not said or said[-1] in ".!…。！" or line_ends > 1
    return finished or line_ends > 0 or said[-1] in "?:;", finished


def _behind(tag: re.Match[str]) -> str:
    """Returns the text after a tag, without marks that open before the tag: `**[message]** hello`."""
    before = tag.string[: tag.start()].rstrip()
    closing = before[len(before.rstrip(EMPHASIS)) :][::-1]
    body = tag.string[tag.end() :].removeprefix(":").strip()
    if closing:
        body = body.removeprefix(closing) if body.startswith(closing) else body.removesuffix(closing)
    return body.removeprefix(":").strip() if closing else body


def _content(kind: ActionKind, behind: str) -> str:
    """Returns the text after a decision's tag, without decoration, openings and closings."""
    text = plain(behind.lstrip(AROUND + ":)")).strip(AROUND)
    for _ in range(IN_A_ROW):
        closing = _CLOSING[kind].search(text, max(0, len(text) - LONGEST))
        text = text[: closing.start() if closing else None].rstrip()
    if kind is not ActionKind.PROPOSE:
        return text.strip(".!")
    opening = _OPENING.match(text)
    return text[opening.end() if opening else 0 :]


def folded(text: str) -> str:
    """Returns the text in small letters; two texts that `re.IGNORECASE` takes for the same give the same."""
    return text.translate(DOTTED).casefold()


def plain(text: str) -> str:
    """Returns the text without markup: plain quotes, dashes, colons and line ends, no emphasis."""
    text = unicodedata.normalize("NFKC", html.unescape(text)).translate(SPELLINGS)
    return INLINE.sub(" ", LINE_END.sub("\n", text))


def untagged(text: str) -> str:
    """Returns the content of an action, or the whole text if it is not an action."""
    try:
        return tagged(text)[1]
    except ParseError:
        return text
