"""What a turn of the matching game can be, and what can be wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from selfplay_pipeline.games import tags
from selfplay_pipeline.games.base import CUT
from selfplay_pipeline.games.tags import ActionKind


class ErrorKind(StrEnum):
    """What was wrong with an illegal action."""

    CUT = CUT
    """The token limit of a turn cut it."""
    NO_TAG = tags.NO_TAG
    SEVERAL_ACTIONS = tags.SEVERAL_ACTIONS
    EMPTY_MESSAGE = "empty_message"
    NOT_NOW = "not_now"
    """An answer without a proposal, or something else while a proposal waits for its answer."""
    MALFORMED = "malformed"
    """A proposal that leaves open which reviewer belongs to which paper."""
    UNKNOWN_NAME = "unknown_name"
    AMBIGUOUS_NAME = "ambiguous_name"
    REPEATED_NAME = "repeated_name"
    """A proposal that gives one paper two reviewers, or one reviewer two papers."""
    INCOMPLETE = "incomplete"
    """A proposal without a line for each paper."""


@dataclass(frozen=True)
class Action:
    """One parsed turn.

    Attributes:
        proposal: (reviewer, paper) index pairs, only of a legal proposal.
        words: what a message says, without its tag.
    """

    kind: ActionKind
    proposal: tuple[tuple[int, int], ...] | None = None
    words: str = ""
