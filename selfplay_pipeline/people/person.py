"""Seats that people hold, and the words in which people read an episode."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from selfplay_pipeline.games.base import CUT, MESSAGE, Choice, Game, Opening, Session, State, Step
from selfplay_pipeline.games.drawing import Table
from selfplay_pipeline.generate.episode import AS_IT_IS, Episode, Player, Reply, Seat, Wrapper
from selfplay_pipeline.generate.episode_wrappers import SessionBesideOthers
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord, SeatRecord, Trajectory, TurnRecord


class Screen(Protocol):
    """Place where people read and write, such as a terminal."""

    async def turn(self, seat: PersonSeat) -> str:
        """Show a person what is new, and return the text of its turn.

        Raises:
            PersonLeft: The person leaves the episode.
        """
        ...


@dataclass
class PersonSeat:
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
    ask: Callable[[PersonSeat], Awaitable[str]]
    views: Sequence[Table] = ()
    choices: Callable[[], Sequence[Choice]] = tuple
    check: Callable[[str], Step] = field(init=False)
    read: list[tuple[bool, str]] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    usage: None = None

    def observe(self, text: str) -> None:
        if text:
            self.read.append((False, text))

    def say(self, text: str) -> None:
        self.read.append((True, text))

    async def act(self) -> Reply:
        text = await self.ask(self)
        self.say(text)
        return Reply(text, False, PERSON)

    def finish(self) -> list[Trajectory]:
        return []

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


def person_player(screen: Screen) -> Player:
    """Returns a person at a screen, as a player; the same screen may have several seats."""
    return Player(
        SeatRecord(kind="person", name=PERSON), lambda seat: PersonSeat(seat.number, seat.opening, screen.turn)
    )


class SessionForPeople(SessionBesideOthers):
    """Session that also runs one with the prompts for people, whose observations people read.

    Attributes:
        own: Session of the episode.
        shown: Session with the prompts for people.
        people: Seats that people hold.
    """

    def __init__(self, own: Session, shown: Session, people: Container[int]) -> None:
        self.own, self.shown, self.people = own, shown, people

    def opening(self, seat: int) -> Opening:
        return (self.shown if seat in self.people else self.own).opening(seat)

    def step(self, seat: int, text: str, *, cut: bool = False) -> Step:
        """Take a turn in both sessions; see `games/base.py: Session`."""
        shown, step = self.shown.step(seat, text, cut=cut), self.own.step(seat, text, cut=cut)
        observations = zip(step.observations, shown.observations, strict=True)
        read = tuple(both[number in self.people] for number, both in enumerate(observations))
        return replace(step, observations=read)


@dataclass(frozen=True)
class ForPeople(Wrapper):
    """Wrapper of an episode in which people hold seats; they read it in the words of their own prompts.

    Attributes:
        game: The game with the set of prompts that people read.
        inner: Way in which the other seats read the episode.
    """

    game: Game
    inner: Wrapper = AS_IT_IS

    def start(self, episode: Episode) -> tuple[Session, Sequence[Session]]:
        own, sessions = self.inner.start(episode)
        people = [number for number, player in enumerate(episode.players) if player.record.kind == "person"]
        shown = self.game.start(episode.state)
        session = SessionForPeople(own, shown, people)
        return session, [shown if seat in people else each for seat, each in enumerate(sessions)]

    def seat(self, episode: Episode, number: int, seat: Seat, session: Session) -> Seat:
        """Returns a seat; that of a person gets its tables, and what tells it the actions that are allowed."""
        if isinstance(seat, PersonSeat):
            seat.views = self.game.draw_view(episode.state, number)
            seat.choices = partial(self.game.choices, session, number)
            seat.check = partial(tried, self.game, episode.state, episode.turns, number)
            return seat
        return self.inner.seat(episode, number, seat, session)

    def turn(self, session: SessionForPeople, turn: TurnRecord) -> TurnRecord:
        return self.inner.turn(session.own, turn)

    def record(self, episode: Episode, session: SessionForPeople, record: EpisodeRecord) -> EpisodeRecord:
        return self.inner.record(episode, session.own, record)


def tried(game: Game, state: State, turns: Sequence[TurnRecord], seat: int, text: str) -> Step:
    """Returns the result that a text would have as the next turn, in a session that replays the turns so far."""
    session: Any = game.start(state)
    for turn in turns:
        session.step(turn.seat, turn.text, cut=turn.error_kind == CUT)
    result: Step = session.step(seat, text)
    return result
