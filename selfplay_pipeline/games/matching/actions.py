"""What can be wrong with a turn of the matching game."""

from __future__ import annotations

from enum import StrEnum

from selfplay_pipeline.games import tagged_session, tags
from selfplay_pipeline.games.base import CUT


class ErrorKind(StrEnum):
    """What was wrong with an illegal action."""

    CUT = CUT
    """The token limit of a turn cut it."""
    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    EMPTY_MESSAGE = tagged_session.EMPTY_MESSAGE
    NOT_NOW = tagged_session.NOT_NOW
    MALFORMED = "malformed"
    """A proposal that leaves open which reviewer belongs to which paper."""
    UNKNOWN_NAME = "unknown_name"
    AMBIGUOUS_NAME = "ambiguous_name"
    REPEATED_NAME = "repeated_name"
    """A proposal that gives one paper two reviewers, or one reviewer two papers."""
    INCOMPLETE = "incomplete"
    """A proposal without a line for each paper."""
