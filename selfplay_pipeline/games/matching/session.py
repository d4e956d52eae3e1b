"""One play of the matching game: whose turn it is, what each player reads, how it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from selfplay_pipeline.games.base import CUT, INVALID, Counts, Opening, Outcome, ParseError, Status, Step
from selfplay_pipeline.games.matching.actions import Action, ErrorKind
from selfplay_pipeline.games.matching.proposals import Matching, format_proposal, named_pairs, short
from selfplay_pipeline.games.matching.rules import AGREED, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.text import parse_action
from selfplay_pipeline.games.prompts import Prompts
from selfplay_pipeline.games.tags import ActionKind


@dataclass
class MatchingSession:
    """One play. Player 0 speaks first."""

    state: MatchingState
    config: MatchingConfig
    prompts: Prompts
    player: int = 0
    status: str | None = None
    pending: Matching | None = None
    """The proposal that waits for an answer."""
    agreed: Matching | None = None
    history: list[tuple[int, str]] = field(default_factory=list)
    """Legal turns so far as (player, text), as the partner heard them: a message, a bare answer, or a proposal in its
    canonical form. Nothing else of what was written reaches the partner."""
    counts: Counts = field(default_factory=lambda: Counts(errors_in_a_row=[0, 0]))

    def opening(self, player: int) -> Opening:
        shown: dict[str, Any] = {
            "player": player,
            "papers": self.state.papers,
            "short_papers": [short(paper) for paper in self.state.papers],
            "reviewers": self.state.reviewers,
            "view": self.state.view(player),
            "size": self.state.size,
            "max_length": self.config.max_length,
        }
        return Opening(self.prompts.render("system", **shown), self.prompts.render("opening", **shown))

    def step(self, text: str, *, cut: bool = False) -> Step:
        """Take the acting player's turn.

        Args:
            text: what the player said, with one action in it.
            cut: the text was cut by the token limit of a turn, so it is no action.

        Raises:
            RuntimeError: the play is over.
        """
        if self.status is not None:
            raise RuntimeError(f"the play has ended: {self.status}")
        actor, partner = self.player, 1 - self.player
        self.counts.turns += 1
        try:
            if cut:
                raise ParseError(CUT, "the turn was too long and was cut off; be brief")
            action = parse_action(text, self.state.papers, self.state.reviewers)
            self._check_legal(action)
        except ParseError as error:
            return self._illegal(actor, error)
        self.counts.errors_in_a_row[actor] = 0
        heard = self._heard(action)
        self.history.append((actor, heard))
        observations = ["", ""]
        pairs = named_pairs(action.proposal or (), self.state.papers, self.state.reviewers)
        observations[partner] = self.prompts.render("partner", text=heard, kind=action.kind.value, pairs=pairs)
        if action.kind is ActionKind.MESSAGE:
            self.counts.messages += 1
            self.player = partner
        elif action.kind is ActionKind.PROPOSE:
            self.counts.proposals += 1
            self.pending = action.proposal
            self.player = partner
        elif action.kind is ActionKind.ACCEPT:
            self.agreed, self.status = self.pending, AGREED
        else:
            self.pending = None
            observations[actor] = self.prompts.render("rejected")
        self._check_turn_limit()
        decision = [list(pair) for pair in action.proposal] if action.proposal else None
        return Step(action.kind.value, tuple(observations), decision)

    def _heard(self, action: Action) -> str:
        """What an action tells the partner."""
        if action.proposal is not None:
            return format_proposal(action.proposal, self.state.papers, self.state.reviewers)
        words = "" if self.config.mute else f" {action.words}"
        return f"[{action.kind}]{words if action.words else ''}"

    def _check_legal(self, action: Action) -> None:
        answers = action.kind in (ActionKind.ACCEPT, ActionKind.REJECT)
        if self.pending is not None and not answers:
            raise ParseError(ErrorKind.NOT_NOW, "a proposal is waiting: answer it with [accept] or [reject]")
        if self.pending is None and answers:
            raise ParseError(ErrorKind.NOT_NOW, f"there is no proposal to {action.kind.value}")

    def _illegal(self, actor: int, error: ParseError) -> Step:
        self.counts.illegal += 1
        self.counts.errors_in_a_row[actor] += 1
        if self.counts.errors_in_a_row[actor] >= self.config.max_errors:
            self.status = Status.ERROR_LIMIT
        self._check_turn_limit()
        observations = ["", ""]
        observations[actor] = self.prompts.render(
            "error",
            error=str(error),
            errors=self.counts.errors_in_a_row[actor],
            max_errors=self.config.max_errors,
            pending=self.pending is not None,
            pairs=named_pairs(
                [(index, index) for index in range(self.state.size)], self.state.papers, self.state.reviewers
            ),
        )
        return Step(INVALID, tuple(observations), error=str(error), error_kind=error.kind)

    def _check_turn_limit(self) -> None:
        if self.status is None and self.counts.turns >= self.config.max_length:
            self.status = Status.TURN_LIMIT

    def abort(self, status: Status) -> None:
        """End the play for a cause outside the rules."""
        if self.status is None:
            self.status = status

    def outcome(self) -> Outcome:
        """The result of an ended play.

        Raises:
            RuntimeError: the play is still running.
        """
        if self.status is None:
            raise RuntimeError("the play is still running")
        score = self.state.score(self.agreed) if self.agreed is not None else 0
        return Outcome(
            status=self.status,
            rewards=(score / self.state.best,) * len(self.state.masks),
            score=score,
            best=self.state.best,
            decision=[list(pair) for pair in self.agreed] if self.agreed else None,
            num_turns=self.counts.turns,
            num_messages=self.counts.messages,
            num_proposals=self.counts.proposals,
            num_illegal=self.counts.illegal,
        )
