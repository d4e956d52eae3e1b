"""Episode of the matching game: the players' prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.games.base import ParseError, Part
from selfplay_pipeline.games.matching.names import short_titles
from selfplay_pipeline.games.matching.proposals import (
    ErrorKind,
    Matching,
    format_proposal,
    named_pairs,
    parse_action,
    short,
)
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.tagged_session import Action, TaggedSession


class MatchingSession(TaggedSession[Matching]):
    """One episode."""

    state: MatchingState
    config: MatchingConfig

    def shown(self, seat: int) -> dict[str, Any]:
        return {
            "player": seat,
            "papers": self.state.papers,
            "short_papers": [short(paper) for paper in self.state.papers],
            "reviewers": self.state.reviewers,
            "view": self.state.view(seat),
            "size": self.state.size,
            "scales_differ": self.config.scale_max > 1,
            "max_length": self.config.max_length,
            "max_words": self.config.max_words,
            "one_sided": self.config.visibility == "one_sided",
        }

    def parse(self, text: str) -> Action[Matching]:
        action = parse_action(text, self.state.papers, self.state.reviewers)
        words, most = len(action.words.split()), self.config.max_words
        if words > most > 0:
            raise ParseError(ErrorKind.TOO_MANY_WORDS, f"the message has {words} words; write at most {most}")
        return action

    def written(self, proposal: Matching) -> str:
        return format_proposal(proposal, self.state.papers, self.state.reviewers)

    def about(self, proposal: Matching | None) -> dict[str, Any]:
        return {"pairs": named_pairs(proposal or (), self.state.papers, self.state.reviewers)}

    def example(self) -> dict[str, Any]:
        return self.about(tuple((index, index) for index in range(self.state.size)))

    def form(self) -> str:
        diagonal = tuple((index, index) for index in range(self.state.size))
        return format_proposal(diagonal, self.state.papers, self.state.reviewers)

    def parts(self) -> list[Part]:
        return [Part(paper, tuple(self.state.reviewers)) for paper in short_titles(self.state.papers)]

    def selected(self, numbers: Sequence[int]) -> str:
        pairs = tuple((reviewer, paper) for paper, reviewer in enumerate(numbers))
        return format_proposal(pairs, self.state.papers, self.state.reviewers)
