"""Kinds of illegal turns of the matching game."""

from __future__ import annotations

from enum import StrEnum

from selfplay_pipeline.games import tagged_session, tags


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
