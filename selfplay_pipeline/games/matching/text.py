"""Conversion of a turn's text to an action. Pure; every error message says what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from selfplay_pipeline.games.matching.proposals import Matching, parse_proposal
from selfplay_pipeline.games.tagged_session import Action, parse_tagged


def parse_action(text: str, papers: Sequence[str], reviewers: Sequence[str]) -> Action[Matching]:
    """Returns the one action of a turn; text before its tag is ignored.

    Raises:
        ParseError: The turn has no action or several, an empty message, or a proposal that is not a full matching.
    """
    return parse_tagged(text, lambda body: parse_proposal(body, papers, reviewers))
