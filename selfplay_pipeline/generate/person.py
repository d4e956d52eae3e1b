"""A seat that is held by a person, and an episode with such seats."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from selfplay_pipeline.games.base import CUT, MESSAGE, Choice, Game, Opening, Session, State, Step
from selfplay_pipeline.games.drawing import Table
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.players import Seat
from selfplay_pipeline.generate.records import PERSON, SeatRecord, TurnRecord
from selfplay_pipeline.generate.seated import SeatedEpisode


class Screen(Protocol):
    """Place where people read and write, such as a terminal."""

    async def turn(self, seat: SeatedPerson) -> str:
        """Show a person what is new, and return the text of its turn.

        Raises:
            PersonLeft: The person leaves the episode.
        """
        ...


@dataclass
class SeatedPerson:
    """A seat held by a person.

    Attributes:
        opening: The rules and the private view, in the words of the prompts for people.
        views: Tables of the private view; empty if the game draws none.
        choices: Returns the actions that the person may take now.
        check: Returns the result that a text would have as the person's turn, without taking the turn.
        read: Everything that the person has read and written, as pairs of `own` and the text.
    """

    number: int
    opening: Opening
    ask: Callable[[SeatedPerson], Awaitable[str]]
    views: Sequence[Table] = ()
    choices: Callable[[], Sequence[Choice]] = tuple
    check: Callable[[str], Step] = field(init=False)
    read: list[tuple[bool, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def observe(self, text: str) -> None:
        """Ignore the observation, since `PersonEpisode` gives the person one in the words of the prompts for people."""

    def say(self, text: str) -> None:
        self.read.append((True, text))

    async def act(self) -> Reply:
        text = await self.ask(self)
        self.say(text)
        return Reply(text, False, PERSON)

    def finish(self) -> None:
        return None

    def read_turn(self, text: str) -> tuple[str, Step]:
        """Returns the turn that a text makes, and its result; the turn is not taken.

        Words without a tag become a message, if the game allows one now.
        """
        step = self.check(text)
        lead = next((choice.form for choice in self.choices() if choice.action == MESSAGE), "")
        if step.error is not None and lead and "[" not in text:
            as_message = self.check(lead + text)
            if as_message.error is None:
                return lead + text, as_message
        return text, step


@dataclass(frozen=True)
class Person:
    """A person at a screen; the same screen may have several seats."""

    screen: Screen

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="person", name=PERSON)

    def sit(self, seat: Seat) -> SeatedPerson:
        return SeatedPerson(seat.number, seat.opening, self.screen.turn)


@dataclass
class PersonEpisode(Episode):
    """An episode that people follow in the words of their own prompts.

    Attributes:
        for_people: Session of the same episode with the prompts for people.
        taken: Called after each turn.
    """

    for_people: Session = field(kw_only=True)
    taken: Callable[[], None] = field(default=lambda: None, kw_only=True)

    def apply_turn(self, seat: int, reply: Reply) -> None:
        """Apply one reply to both sessions and pass the observations to the seats."""
        self.show_people(seat, reply)
        super().apply_turn(seat, reply)
        self.taken()

    def heard_at(self, number: int) -> dict[int, str] | None:
        """Returns what other seats heard in place of a turn, by seat; None if they heard the turn itself."""
        return None

    def show_people(self, seat: int, reply: Reply) -> None:
        """Apply one reply to the session for people, and let them read its observations."""
        step = self.for_people.step(seat, reply.text, cut=reply.cut)
        for holder, observation in zip(self.seats, step.observations, strict=True):
            if isinstance(holder, SeatedPerson) and observation:
                holder.read.append((False, observation))


@dataclass
class PlayedEpisode(SeatedEpisode):
    """An episode in which people hold seats.

    Attributes:
        for_people: The same game with the set of prompts that people read.
    """

    episode: PersonEpisode = field(init=False)
    for_people: Game = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        shown = self.for_people.start(self.state)
        self.episode = self.begun(shown)
        for seat in self.episode.seats:
            if isinstance(seat, SeatedPerson):
                seat.opening = shown.opening(seat.number)
                seat.views = self.for_people.draw_view(self.state, seat.number)
                seat.choices = partial(self.for_people.choices, shown, seat.number)
                seat.check = partial(tried, self.for_people, self.state, self.episode.turns, seat.number)

    def begun(self, shown: Session) -> PersonEpisode:
        """Returns the episode of the seated players.

        Args:
            shown: Session with the prompts for people.
        """
        return PersonEpisode(self.episode.session, self.episode.seats, for_people=shown)


def tried(game: Game, state: State, turns: Sequence[TurnRecord], seat: int, text: str) -> Step:
    """Returns the result that a text would have as the next turn, in a session that replays the turns so far."""
    session: Any = game.start(state)
    for turn in turns:
        session.step(turn.seat, turn.text, cut=turn.error_kind == CUT)
    result: Step = session.step(seat, text)
    return result
