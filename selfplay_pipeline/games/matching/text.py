"""From a turn's text to an action. Pure; every error says what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.actions import Action, ErrorKind
from selfplay_pipeline.games.matching.proposals import parse_proposal
from selfplay_pipeline.games.tags import ActionKind, tagged


def parse_action(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Action:
    """Read the one action of a turn; what stands before its tag is ignored.

    Raises:
        ParseError: no action or several, an empty message, or a proposal that is not a full matching.
    """
    kind, body = tagged(text)
    if kind is ActionKind.PROPOSE:
        return Action(kind, parse_proposal(body, papers, reviewers))
    if kind is ActionKind.MESSAGE:
        if not body:
            raise ParseError(ErrorKind.EMPTY_MESSAGE, "the message is empty")
        return Action(kind, words=body)
    return Action(kind)
