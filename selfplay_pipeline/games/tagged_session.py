"""Episode of a game in which two seats take tagged turns: they talk, one proposes, the other accepts or rejects.

A game defines the content, the text and the value of a proposal. Turns, limits and errors are the same in all games.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from selfplay_pipeline.games.base import (
    AGREED,
    CUT,
    INVALID,
    Counts,
    Opening,
    Outcome,
    ParseError,
    Status,
    Step,
    check_may_act,
)
from selfplay_pipeline.games.prompts import Prompts
from selfplay_pipeline.games.tags import ActionKind, tagged

EMPTY_MESSAGE = "empty_message"
"""Error kind of a message without text."""
NOT_NOW = "not_now"
"""Error kind of an answer without a proposal, and of any other action while a proposal waits for its answer."""

Proposal = TypeVar("Proposal", bound=Sequence[Sequence[int]])


@dataclass(frozen=True)
class Action(Generic[Proposal]):
    """One parsed turn.

    Attributes:
        proposal: Content of a proposal; None for any other action.
        words: Text of a message, without its tag.
    """

    kind: ActionKind
    proposal: Proposal | None = None
    words: str = ""


def parse_tagged(text: str, parse_proposal: Callable[[str], Proposal]) -> Action[Proposal]:
    """Returns the one action of a turn; text before its tag is ignored.

    Args:
        parse_proposal: Function that returns the content of a proposal, or raises `ParseError`.

    Raises:
        ParseError: The turn has no action or several, an empty message, words behind an answer, or no legal proposal.
    """
    kind, body = tagged(text)
    if kind is ActionKind.PROPOSE:
        return Action(kind, parse_proposal(body))
    if kind is ActionKind.MESSAGE:
        if not body:
            raise ParseError(EMPTY_MESSAGE, "the message is empty")
        return Action(kind, words=body)
    return Action(kind)


@dataclass
class TaggedSession(ABC, Generic[Proposal]):
    """One episode. Seat 0 speaks first.

    Attributes:
        config: Configuration of the game, with `max_length`, `max_errors` and `mute`.
        seat: Seat whose turn it is.
        pending: Proposal that waits for an answer.
        history: Legal turns so far as (seat, text), in the form that the partner receives: a message, a bare answer, or
            a proposal in its canonical form. The partner receives no other text.
    """

    state: Any
    config: Any
    prompts: Prompts
    seat: int = 0
    status: str | None = None
    pending: Proposal | None = None
    agreed: Proposal | None = None
    history: list[tuple[int, str]] = field(default_factory=list)
    counts: Counts = field(default_factory=lambda: Counts(errors_in_a_row=[0, 0]))

    @abstractmethod
    def shown(self, seat: int) -> dict[str, Any]:
        """Returns the variables of the templates `system` and `opening` for a player."""

    @abstractmethod
    def parse(self, text: str) -> Action[Proposal]:
        """Returns the action of the acting player's turn, or raises `ParseError`."""

    @abstractmethod
    def written(self, proposal: Proposal) -> str:
        """Returns the acting player's proposal as the text that its partner receives."""

    @abstractmethod
    def about(self, proposal: Proposal | None) -> dict[str, Any]:
        """Returns the variables of the template `partner` that describe a proposal; None stands for any other action.
        The template also has `text` and `kind`."""

    @abstractmethod
    def example(self) -> dict[str, Any]:
        """Returns the variables of the template `error` that show a legal proposal."""

    @abstractmethod
    def worth(self, proposal: Proposal) -> tuple[float, tuple[float, ...]]:
        """Returns the score of an agreed proposal, and the reward of each seat."""

    @property
    def seats(self) -> tuple[int, ...]:
        """The one seat that may act; empty once the episode is over."""
        return (self.seat,) if self.status is None else ()

    def opening(self, seat: int) -> Opening:
        shown = self.shown(seat)
        return Opening(self.prompts.render("system", **shown), self.prompts.render("opening", **shown))

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take the acting player's turn; see `games/base.py: Session`."""
        check_may_act(self, seat)
        actor, partner = seat, 1 - seat
        self.counts.turns += 1
        try:
            if cut:
                raise ParseError(CUT, "the turn was too long and was cut off; be brief")
            action = self.parse(text)
            self._check_legal(action.kind)
        except ParseError as error:
            return self._illegal(actor, error)
        self.counts.errors_in_a_row[actor] = 0
        heard = self._heard(action)
        self.history.append((actor, heard))
        observations = ["", ""]
        about = self.about(action.proposal)
        observations[partner] = self.prompts.render("partner", text=heard, kind=action.kind.value, **about)
        if action.kind is ActionKind.MESSAGE:
            self.counts.messages += 1
            self.seat = partner
        elif action.kind is ActionKind.PROPOSE:
            self.counts.proposals += 1
            self.pending = action.proposal
            self.seat = partner
        elif action.kind is ActionKind.ACCEPT:
            self.agreed, self.status = self.pending, AGREED
        else:
            self.pending = None
            observations[actor] = self.prompts.render("rejected")
        self._check_turn_limit()
        return Step(action.kind.value, tuple(observations), _as_json(action.proposal))

    def _heard(self, action: Action[Proposal]) -> str:
        """Returns the text of an action that the partner receives."""
        if action.proposal is not None:
            return self.written(action.proposal)
        words = "" if self.config.mute else f" {action.words}"
        return f"[{action.kind}]{words if action.words else ''}"

    def _check_legal(self, kind: ActionKind) -> None:
        answers = kind in (ActionKind.ACCEPT, ActionKind.REJECT)
        if self.pending is not None and not answers:
            raise ParseError(NOT_NOW, "a proposal is waiting: answer it with [accept] or [reject]")
        if self.pending is None and answers:
            raise ParseError(NOT_NOW, f"there is no proposal to {kind.value}")

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
            **self.example(),
        )
        return Step(INVALID, tuple(observations), error=str(error), error_kind=error.kind)

    def _check_turn_limit(self) -> None:
        if self.status is None and self.counts.turns >= self.config.max_length:
            self.status = Status.TURN_LIMIT

    def abort(self, status: Status) -> None:
        """End the episode for a cause outside the rules."""
        if self.status is None:
            self.status = status

    def outcome(self) -> Outcome:
        """Returns the result of an ended episode.

        Raises:
            RuntimeError: The episode is still running.
        """
        if self.status is None:
            raise RuntimeError("the episode is still running")
        score, rewards = (0, (0.0, 0.0)) if self.agreed is None else self.worth(self.agreed)
        return Outcome(
            status=self.status,
            rewards=rewards,
            score=score,
            best=self.state.best,
            decision=_as_json(self.agreed),
            num_turns=self.counts.turns,
            num_messages=self.counts.messages,
            num_proposals=self.counts.proposals,
            num_illegal=self.counts.illegal,
        )


def _as_json(proposal: Sequence[Sequence[int]] | None) -> list[list[int]] | None:
    return None if proposal is None else [list(part) for part in proposal]
