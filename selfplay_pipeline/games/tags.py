"""Turns that begin with a tag: which action a turn is, for games whose turns are one of four actions. Pure.

Every error says what to write instead.
"""

from __future__ import annotations

import re
from enum import StrEnum

from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.figures import Figure


class ActionKind(StrEnum):
    """What a tagged turn can be."""

    MESSAGE = "message"
    PROPOSE = "propose"
    ACCEPT = "accept"
    REJECT = "reject"


PROPOSALS = Figure("proposals", "proposals an episode", lambda e: sum(t.action == ActionKind.PROPOSE for t in e.turns))
"""A figure of every game with tags."""

NO_TAG = "no_tag"
"""The kind of error where none of the four tags stands where an action starts."""
SEVERAL_ACTIONS = "several_actions"
"""Tags of different actions."""
TAG = re.compile(r"[\[［【][\s*_`\\]*(message|propose|proposal|accept|reject)[\s*_`\\]*[\]］】]", re.IGNORECASE)
EMPHASIS = '*_`~"'
ANSWERS = (ActionKind.ACCEPT, ActionKind.REJECT)
DENIALS = re.compile(
    r"""\b(?:not(?!\ (?:visible|seen|known|shown)\b)|no(?!\.?\s*[|\d])|nope|\w+n't|cannot|never|neither|nor|either
    |except|instead|unless|maybe|perhaps|possibly|alternative\w*|otherwise|rather|without|else|unsure|tentative\w*
    |opposite|oops|mixed|flip\w*|upside|swap\w*|switch\w*|exchang\w*|revers\w*|rotat\w*|shift\w*|trad(?:e|es|ed|ing)
    |vice\ versa|other\ way|correction|actually|forget|scratch|retract\w*|withdraw\w*|cancel\w*|back|ignore|disregard
    |never\ ?mind|changed\ my|wait|hmm+|undo|void|kidding|joking|joke|mistake\w*|wrong|incorrect|invalid|false
    |bad|terrible|awful|worse|worst|excluded|removed|rejected|refused?|example|quote[ds]?)\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""What takes a proposal or a pair of it back, wherever it stands."""
SENTENCE_END = re.compile(r"[.!?…;]\W*(?:\s|$)")
ABOUT_TAGS = re.compile(
    r"\b(?:if|when|before|either|between|choices?|options?|said|says?|can|could|would|might|may|want|hope|please|you|format"
    r"|looks? like|shall|should)\b",
    re.IGNORECASE,
)
"""Words of an unfinished sentence before a tag that talk about it."""
GOES_ON = re.compile(r"[\"'”’)]?[^\S\n]+(?:[a-z]|[-–—])")
"""What stands behind the tag of an answer that is part of a longer sentence."""
SUBJECT = re.compile(r"\W*[^\S\n](?:is|was|would|could|might|may)\b", re.IGNORECASE)
"""The same, also where the tag opens the turn."""
RETRACTED = re.compile(r"\b(?:only if|unless|not yet|no,? wait|kidding|joking|oops)\b", re.IGNORECASE)
"""What takes an acceptance back, or makes it depend on something."""


def tagged(text: str) -> tuple[ActionKind, str]:
    """The action and what stands behind its tag.

    [message] counts wherever it stands. The others decide, so they count only where a line or sentence starts with
    them, or where an answer ends the turn; elsewhere they are talked about. An answer stands beside no other tag.
    """
    tags = [(_kind(tag), tag) for tag in TAG.finditer(text)]
    acting = [(kind, tag) for kind, tag in tags if kind is ActionKind.MESSAGE or _opens(kind, tag)]
    if not acting:
        why = f"{tags[0][1].group()} is not at the start of a line; " if tags else ""
        raise ParseError(NO_TAG, f"{why}start with [message], [propose], [accept] or [reject]")
    kind, tag = acting[0]
    others = {other for other, _ in (tags if kind in ANSWERS else acting)} - {kind}
    if others:
        several = " and ".join(sorted(f"[{each}]" for each in {kind, *others}))
        raise ParseError(SEVERAL_ACTIONS, f"a turn is one action, and this one has {several}; write one")
    return kind, _behind(tag)


def _kind(tag: re.Match[str]) -> ActionKind:
    name = tag[1].lower()
    return ActionKind.PROPOSE if name == "proposal" else ActionKind(name)


def _opens(kind: ActionKind, tag: re.Match[str]) -> bool:
    """Whether a tag decides: it starts a line or sentence, or ends the turn, and is not just talked about."""
    before, behind = tag.string[: tag.start()].strip(), tag.string[tag.end() :]
    unfinished = SENTENCE_END.split(before)[-1]
    if DENIALS.search(unfinished) or ABOUT_TAGS.search(unfinished):
        return False
    closed = behind.lstrip(EMPHASIS + " '”’)")
    if kind in ANSWERS and (closed.startswith("?") or (before and GOES_ON.match(behind))):
        return False
    if (kind in ANSWERS and SUBJECT.match(behind)) or (kind is ActionKind.ACCEPT and RETRACTED.search(behind)):
        return False
    line = tag.string[: tag.start()].rpartition("\n")[2].rstrip(EMPHASIS + " \t'“‘(\\")
    amid_a_sentence = line[-1:].isalnum() or line.endswith((",", ")", ";"))
    return not amid_a_sentence or (kind in ANSWERS and not closed.strip(".!"))


def _behind(tag: re.Match[str]) -> str:
    """What stands behind a tag, without the marks that open before it: `**[message]** hello`."""
    before = tag.string[: tag.start()].rstrip()
    closing = before[len(before.rstrip(EMPHASIS)) :][::-1]
    body = tag.string[tag.end() :].removeprefix(":").strip()
    if closing:
        body = body.removeprefix(closing) if body.startswith(closing) else body.removesuffix(closing)
    return body.removeprefix(":").strip() if closing else body


def untagged(text: str) -> str:
    """What an action says behind its tag; all of a text that is none."""
    try:
        return tagged(text)[1]
    except ParseError:
        return text
