"""Session with the bookkeeping that every game needs: limits, counts, muting, and the outcome by `Game.rewards`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import (
    CUT,
    INVALID,
    MESSAGE,
    MUTED,
    Game,
    Opening,
    Outcome,
    ParseError,
    State,
    Status,
    Step,
    check_may_act,
)

PROPOSE = "propose"
"""Action that is counted as a proposal, in games that have it."""


@dataclass(frozen=True)
class Move:
    """Legal action of a turn, as a game returns it.

    Attributes:
        told: New text for seats, by seat. It may include the acting seat, such as the answer of a tool.
        action: One of the game's `actions`.
        decision: Proposal or decision of the action, as JSON; None if it has none.
    """

    told: Mapping[int, str] = field(default_factory=dict)
    action: str = MESSAGE
    decision: Any = None


@dataclass(frozen=True)
class Known:
    """All that a seat knows at the beginning of its turn.

    Attributes:
        read: Texts that the seat has read, the observation of its opening first.
        said: Texts of its own turns, illegal ones too.
    """

    seat: int
    read: tuple[str, ...]
    said: tuple[str, ...]


@dataclass
class Counts:
    """Running counts of a session."""

    turns: int = 0
    messages: int = 0
    proposals: int = 0
    illegal: int = 0
    errors_in_a_row: list[int] = field(default_factory=list)


class TurnSession(ABC):
    """Session of a game that defines only `opening` and `act`.

    Attributes:
        game: The game, with its configuration.
        next: Seats that may act now, in the order in which they act; `act` changes it.
        status: Final status of the episode; None while it runs.
        decision: Final decision, as JSON; `end` sets it.
    """

    max_errors: int = 5
    """Number of illegal actions of one player in a row after which an episode ends."""

    def __init__(self, game: Game, state: Any) -> None:
        """Begin an episode of a state; seat 0 acts first."""
        self.game = game
        self.state = state
        self.config = game.config
        self.next: tuple[int, ...] = (0,)
        self.status: str | None = None
        self.decision: Any = None
        self.counts = Counts(errors_in_a_row=[0] * len(game.roles))
        self._read: list[list[str]] = [[] for _ in game.roles]
        self._said: list[list[str]] = [[] for _ in game.roles]

    @abstractmethod
    def opening(self, seat: int) -> Opening:
        """Returns the rules and the private view of a seat."""

    @abstractmethod
    def act(self, seat: int, text: str) -> Move:
        """Take a turn: change `next` or call `end`, and return the action.

        Raises:
            ParseError: The text is not a legal action. Nothing may have changed, unless the text ends the episode or
                its author loses the turn.
        """

    def about_error(self, seat: int, error: ParseError) -> str:
        """Returns the text that a seat reads after an illegal action."""
        return f"{error} Try again."

    def end(self, status: str, decision: Any = None) -> None:
        """End the episode, with one of the game's `goals` and the decision that `Game.rewards` values."""
        self.status, self.decision = status, decision

    def known(self, seat: int) -> Known:
        """Returns all that a seat knows, for scripted players."""
        return Known(seat, (self.opening(seat).observation, *self._read[seat]), tuple(self._said[seat]))

    @property
    def seats(self) -> tuple[int, ...]:
        """Seats that may act now; empty once the episode is over."""
        return self.next if self.status is None else ()

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a turn and return its result; see `games/base.py: Session`."""
        check_may_act(self, seat)
        self.counts.turns += 1
        self._said[seat].append(text)
        step = self._result(seat, text, cut=cut)
        for read, observation in zip(self._read, step.observations, strict=True):
            read += [observation] * bool(observation)
        return step

    def _result(self, seat: int, text: str, *, cut: bool) -> Step:
        before = self.next
        try:
            if cut:
                raise ParseError(CUT, "the turn was too long and was cut off; be brief")
            move = self.act(seat, text)
        except ParseError as error:
            if error.told is None:
                self.next = before  # the turn is taken again, even if `act` had changed `next` already
            return self._illegal(seat, error)
        self.counts.errors_in_a_row[seat] = 0
        self.counts.messages += move.action == MESSAGE
        self.counts.proposals += move.action == PROPOSE
        self._check_turn_limit()
        return Step(move.action, self._observations(seat, move), move.decision)

    def _observations(self, seat: int, move: Move) -> tuple[str, ...]:
        """Returns the new text of each seat; with `mute`, others hear only that a message was sent."""
        muted = self.config.mute and move.action == MESSAGE
        return tuple(
            MUTED if muted and other != seat and move.told.get(other) else move.told.get(other, "")
            for other in range(len(self.game.roles))
        )

    def _illegal(self, seat: int, error: ParseError) -> Step:
        self.counts.illegal += 1
        self.counts.errors_in_a_row[seat] += 1
        if self.status is None and self.counts.errors_in_a_row[seat] >= self.max_errors:
            self.status = Status.ERROR_LIMIT
        self._check_turn_limit()
        told = {**(error.told or {}), seat: self.about_error(seat, error)}
        observations = tuple(told.get(other, "") for other in range(len(self.game.roles)))
        return Step(INVALID, observations, error=str(error), error_kind=error.kind)

    def _check_turn_limit(self) -> None:
        if self.status is None and self.counts.turns >= self.config.max_length:
            self.status = Status.TURN_LIMIT

    def abort(self, status: Status) -> None:
        """End the episode for a reason outside the rules."""
        if self.status is None:
            self.status = status

    def outcome(self) -> Outcome:
        """Returns the result of an ended episode.

        Raises:
            RuntimeError: The episode is still running.
        """
        if self.status is None:
            raise RuntimeError("the episode is still running")
        score, rewards, reached = 0.0, (0.0,) * len(self.game.roles), self.status in self.game.goals
        if reached:
            rewards = checked_rewards(self.game, self.state, self.decision)
            score = self.game.score(self.state, self.decision)
        return Outcome(
            status=self.status,
            rewards=rewards,
            score=score,
            best=self.game.best(self.state),
            decision=self.decision if reached else None,
            num_turns=self.counts.turns,
            num_messages=self.counts.messages,
            num_proposals=self.counts.proposals,
            num_illegal=self.counts.illegal,
        )


def checked_rewards(game: Game, state: State, decision: Any) -> tuple[float, ...]:
    """Returns `Game.rewards` of a decision.

    Raises:
        UserError: The rewards are not one number from 0 to 1 for each seat.
    """
    found: Any = game.rewards(state, decision)
    try:
        rewards = tuple(map(float, found))
    except (TypeError, ValueError, OverflowError):
        rewards = ()
    if len(rewards) != len(game.roles) or not all(0 <= one <= 1 for one in rewards):
        raise UserError(
            f"{type(game).__module__}: `rewards` returns {found!r}; return one number from 0 to 1 for each of the "
            f"{len(game.roles)} seats"
        )
    return rewards
