"""Episode of a game in which two seats take tagged turns: messages, proposals and answers to them.

A game defines the content, the text and the value of a proposal. Turns, limits and errors are the same in all games.

Two protocols say who may do what. In `free` play the seats talk as long as they like, one proposes, the other accepts
or rejects. In the `fixed` protocol they say a given number of messages in turn, and then the seat whose turn it is
proposes once; its proposal is the outcome.

Theorem: in the fixed protocol, no play without the content of messages has a higher expected reward than the silence
line. Proof: the number, the order and the kind of all turns are the same in every episode, and nobody observes an
illegal turn but its author. So if the messages carry no content (`mute: true`, or messages that are independent of the
state given the hearer's view), the proposer's observations are its own view v and something that is independent of
the state s given v. For each such observation its proposal has an expected reward of at most max over proposals p of
E[reward(s, p) | v]. The mean of that maximum over v is the silence line, taken over the views of the seats that may
propose: of both if the rules draw both views alike, or of the one seat that always proposes. Illegal turns can only end
an episode with reward 0. Private or shared randomness changes nothing, since a mean never exceeds a maximum. In free
play the theorem fails: who speaks, proposes or rejects, and when, tells something about the view.

Second theorem: in the fixed protocol, no play in which each heard message is swapped (`episode_wrappers.py`) has a
higher expected reward than the silence line. Proof: let h be the proposer and v its view. For h a state s' is drawn
from the distribution of states given v, independently of the true state s. All that h hears is messages of players who
see s' in place of s, and who hear only h and each other. So, by induction over the turns, the messages that h hears and
its own turns are functions of v, s' and the randomness of players who do not see s: they are independent of s given v.
Then the first theorem applies. The words of the true partner do not matter, because h does not hear them. Where a
counterfactual player fails to send a message, the empty message in its place is no function of s either.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from selfplay_pipeline.games.base import (
    AGREED,
    MESSAGE,
    MUTED,
    Choice,
    Game,
    GameSettings,
    Opening,
    ParseError,
    Part,
    State,
)
from selfplay_pipeline.games.prompts import load_prompts
from selfplay_pipeline.games.tags import ActionKind, tagged
from selfplay_pipeline.games.turn_session import Move, TurnSession

EMPTY_MESSAGE = "empty_message"
"""Error kind of a message without text."""
NOT_NOW = "not_now"
"""Error kind of an action at the wrong time, such as an answer without a proposal."""

Proposal = TypeVar("Proposal", bound=Sequence[Sequence[Any]])


class TaggedSettings(GameSettings):
    """Configuration fields of games with tagged turns."""

    protocol: Literal["free", "fixed"] = "free"
    """Rule of turns, `free` or `fixed`.

    With `free`, seats talk, propose, accept or reject at will. With `fixed`, they say exactly `messages` messages in
    turn, beginning with seat 0, unless the game fixes who proposes. Then the seat whose turn it is proposes once, and
    that is the outcome. Neither timing nor the choice of an action tells anything, so no play without the content of
    messages exceeds the silence line.
    """
    messages: Annotated[int, Field(ge=1)] = 1
    """Number of messages before the proposal, with `protocol: fixed`. After an odd number seat 1 proposes."""
    max_errors: Annotated[int, Field(ge=1)] = 5
    """Number of illegal actions of one player in a row after which an episode ends without agreement."""

    @property
    def proposer(self) -> int:
        """Seat that proposes in the fixed protocol."""
        return self.messages % 2

    @property
    def first_speaker(self) -> int:
        """Seat that acts first: seat 0 in free play, else the seat from which the turns end at the proposer."""
        return (self.proposer - self.messages) % 2 if self.protocol == "fixed" else 0

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.protocol == "fixed" and self.max_length <= self.messages:
            raise ValueError(
                f"max_length {self.max_length} leaves no turn for the proposal after {self.messages} messages"
            )
        return self


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


@dataclass(frozen=True)
class SeatView:
    """Knowledge of one player at the beginning of its turn, in any game of tagged turns.

    Attributes:
        seat: 0 or 1.
        history: Legal turns so far as (seat, text), the oldest first.
        due: Action that the protocol demands of this turn; None if the player chooses.
    """

    seat: int
    history: tuple[tuple[int, str], ...] = field(default=(), kw_only=True)
    due: ActionKind | None = field(default=None, kw_only=True)

    def said(self, seat: int) -> list[str]:
        """Returns the turns of one player."""
        return [text for speaker, text in self.history if speaker == seat]

    def says(self, wish: bool) -> bool:
        """Whether the player sends a message in this turn: its wish, unless the protocol demands an action."""
        return wish if self.due is None else self.due is ActionKind.MESSAGE


class TaggedSession(TurnSession, Generic[Proposal]):
    """One episode.

    Attributes:
        pending: Proposal that waits for an answer.
        history: Legal turns so far as (seat, text), in the form that the partner receives unless messages are muted: a
            message, a bare answer, or a proposal in its canonical form. The partner receives no other text.
    """

    game: TaggedGame
    config: TaggedSettings

    def __init__(self, game: TaggedGame, state: Any) -> None:
        """Begin an episode of a state."""
        super().__init__(game, state)
        self.max_errors = self.config.max_errors
        self.next = (self.config.first_speaker,)
        self.pending: Proposal | None = None
        self.history: list[tuple[int, str]] = []

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
        """Returns the variables of the template `partner` that describe the turn's proposal, None without one.

        The template also has `text` and `kind`.
        """

    @abstractmethod
    def example(self) -> dict[str, Any]:
        """Returns the variables of the template `error` that show a legal proposal."""

    @abstractmethod
    def form(self) -> str:
        """Returns a legal proposal as the text of the acting player's turn."""

    def parts(self) -> Sequence[Part]:
        """Returns the parts of a proposal that a person selects; by default none."""
        return ()

    def selected(self, numbers: Sequence[int]) -> str:
        """Returns the acting player's proposal as text, given the number of the selected option of each part."""
        raise NotImplementedError

    @property
    def seat(self) -> int:
        """Seat whose turn it is."""
        return self.next[0]

    @property
    def due(self) -> ActionKind | None:
        """Action that the next turn must be; None if the player chooses."""
        if self.config.protocol == "free":
            return None
        said = sum(text.startswith(f"[{MESSAGE}]") for _seat, text in self.history)
        return ActionKind.MESSAGE if said < self.config.messages else ActionKind.PROPOSE

    def choices(self) -> list[Choice]:
        """Returns the actions that the acting player may take."""
        if self.pending is not None:
            kinds = [ActionKind.ACCEPT, ActionKind.REJECT]
        else:
            kinds = [ActionKind.MESSAGE, ActionKind.PROPOSE] if self.due is None else [self.due]
        forms = {ActionKind.MESSAGE: "[message] ", ActionKind.PROPOSE: self.form()}
        parts = self.parts()
        return [
            Choice(
                kind.value,
                forms.get(kind, f"[{kind}]"),
                *((parts, self.selected) if kind is ActionKind.PROPOSE else ()),
            )
            for kind in kinds
        ]

    def opening(self, seat: int) -> Opening:
        shown = self.shown(seat) | {
            "protocol": self.config.protocol,
            "messages": self.config.messages,
            "proposer": self.config.proposer,
            "first_speaker": self.config.first_speaker,
        }
        prompts = self.game.prompts
        return Opening(prompts.render("system", **shown), prompts.render("opening", **shown))

    def act(self, seat: int, text: str) -> Move:
        """Take a turn of the protocol; see `TurnSession.act`."""
        action = self.parse(text)
        self._check_legal(action.kind)
        partner, text, decision = 1 - seat, self._text_of(action), _as_json(action.proposal)
        self.history.append((seat, text))
        observations, about = dict[int, str](), self.about(action.proposal)
        if action.kind is ActionKind.PROPOSE and self.due is not None:
            self.end(AGREED, decision)
        elif action.kind is ActionKind.PROPOSE:
            self.next, self.pending = (partner,), action.proposal
        elif action.kind is ActionKind.ACCEPT:
            self.end(AGREED, _as_json(self.pending))
        elif action.kind is ActionKind.REJECT:
            self.pending = None
            observations[seat] = self.game.prompts.render("rejected")
        else:
            self.next = (partner,)
        if self.status is None or self.due is None:
            observations[partner] = self.game.prompts.render(
                "partner", text=self._heard(text), kind=action.kind.value, due=self.due, **about
            )
        return Move(observations, action.kind.value, decision)

    def about_error(self, seat: int, error: ParseError) -> str:
        return self.game.prompts.render(
            "error",
            error=str(error),
            errors=self.counts.errors_in_a_row[seat],
            max_errors=self.max_errors,
            pending=self.pending is not None,
            due=self.due,
            **self.example(),
        )

    def _observations(self, seat: int, move: Move) -> tuple[str, ...]:
        return tuple(move.told.get(other, "") for other in (0, 1))  # `_heard` mutes

    def known_history(self, seat: int) -> tuple[tuple[int, str], ...]:
        """Returns all legal turns as a seat knows them: its own as it wrote them, the partner's as it heard
        them."""
        return tuple((speaker, text if speaker == seat else self._heard(text)) for speaker, text in self.history)

    def _text_of(self, action: Action[Proposal]) -> str:
        if action.proposal is not None:
            return self.written(action.proposal)
        return f"[{action.kind}] {action.words}" if action.words else f"[{action.kind}]"

    def _heard(self, text: str) -> str:
        """Returns what the partner receives of a turn in the history."""
        return MUTED if self.config.mute and text.startswith(MUTED) else text

    def _check_legal(self, kind: ActionKind) -> None:
        if self.due is not None and kind is not self.due:
            left = self.config.messages - self.counts.messages
            why = f"messages left before the proposal: {left}" if left else "all messages are said"
            raise ParseError(NOT_NOW, f"this turn must be a [{self.due}] ({why})")
        answers = kind in (ActionKind.ACCEPT, ActionKind.REJECT)
        if self.pending is not None and not answers:
            raise ParseError(NOT_NOW, "a proposal is waiting: answer it with [accept] or [reject]")
        if self.pending is None and answers:
            raise ParseError(NOT_NOW, f"there is no proposal to {kind.value}")


def _as_json(proposal: Sequence[Sequence[Any]] | None) -> list[list[Any] | str] | None:
    return None if proposal is None else [part if isinstance(part, str) else [*part] for part in proposal]


class TaggedGame(Game):
    """Game with tagged turns; its prompts are in `prompt_folder`, one folder for each set.

    Attributes:
        prompt_folder: Folder of the game's sets of prompts.
        prompt_names: Names of the template files in a set.
    """

    actions = frozenset(kind.value for kind in ActionKind)
    prompt_folder: ClassVar[Path]
    prompt_names: ClassVar[tuple[str, ...]] = ("system", "opening", "partner", "error", "rejected")

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.prompts = load_prompts(self.prompt_folder, self.config.prompts, self.prompt_names)

    @property
    def silence_is_bound(self) -> bool:
        return bool(self.config.protocol == "fixed")

    def choices(self, session: TaggedSession[Any], seat: int) -> Sequence[Choice]:
        return session.choices()

    def check_outcome(self, state: State, outcome: Any) -> None:
        """Checks an outcome, and that the protocol allows its numbers of messages and proposals; see `Game`."""
        if self.config.protocol == "fixed":
            for name, due in (("num_messages", self.config.messages), ("num_proposals", 1)):
                if (made := getattr(outcome, name)) != due:
                    raise ValueError(f"field 'outcome.{name}': {made}, but the fixed protocol has {due}")
        super().check_outcome(state, outcome)
