"""One episode: its seats take turns until the game ends, and become a record.

A `Player` holds a seat for a whole run. For each episode it takes a new `Seat`, which reads and acts.

Seats that may act at the same time act one after the other. The result is the same as in parallel, since no seat
observes another's turn before all have acted. Many concurrent episodes keep the engine busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import SEATS, Game, Opening, ScriptedPlayer, Session, State, Status
from selfplay_pipeline.generate.records import (
    EpisodeRecord,
    OutcomeRecord,
    PartnerUsage,
    PolicyRecord,
    SeatRecord,
    Trajectory,
    TurnRecord,
)

Place = tuple[int, int, int]
"""Seed of the run, group index, and number of the episode within its group."""

LONGEST_TURN = 2**15
"""Largest number of characters of a turn. A longer one counts as cut by its limit of tokens.

A server of others may ignore the limit of tokens, and templates and lines of a file have limits of their own.
"""


@dataclass(frozen=True)
class Reply:
    """Reply of a seat; `cut` is True if the token limit of a turn ended it."""

    text: str
    cut: bool
    finish_reason: str


class ContextFull(Exception):
    """The seat's next turn might not fit into the model's context."""


class PersonLeft(Exception):
    """The person in the seat leaves the episode."""


class Seat(Protocol):
    """A player in one seat of one episode: a policy, a scripted player, a chat model behind an API, or a person."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts that this seat sent to an engine."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Number of the prompt tokens that were in the engine's prefix cache."""
        ...

    @property
    def usage(self) -> PartnerUsage | None:
        """Requests, tokens and price of a chat model; None for other players, or if they are not counted."""
        ...

    def observe(self, text: str) -> None:
        """Add an observation to the context of the next turn."""
        ...

    def say(self, text: str) -> None:
        """Add a turn that the caller supplies to the context of the next turn."""
        ...

    async def act(self) -> Reply:
        """Take a turn and return its text.

        Raises:
            ContextFull: The turn might not fit into the model's context.
            EngineError: No answer came after all retries.
            PersonLeft: The person in the seat leaves the episode.
        """
        ...

    def finish(self) -> list[Trajectory]:
        """Returns the trajectories of a trained seat; none for any other seat."""
        ...


@dataclass(frozen=True)
class SeatView:
    """One seat of one episode, as its player sees it."""

    opening: Opening
    """The rules and the player's private view, as text."""
    view: Callable[[], Any]
    """Returns the player's current knowledge as data, for scripted players."""
    script: Callable[[str], ScriptedPlayer]
    """Returns the game's scripted player with a given name."""
    number: int
    key: str
    """Identifier of the seat, unique among all episodes."""
    seed: tuple[int, ...]
    """Seed of the seat's random stream."""

    @classmethod
    def at(cls, game: Game, session: Any, number: int, episode_id: str, seed: tuple[int, ...]) -> SeatView:
        """Returns a seat of an episode, without the private information of other seats."""
        return cls(
            opening=session.opening(number),
            view=partial(game.view, session, number),
            script=game.players.__getitem__,
            number=number,
            key=f"{episode_id}-{number}",
            seed=(SEATS, *seed, number),
        )


@dataclass(frozen=True)
class Player:
    """A checkpoint, a scripted player, a chat model behind an API, or a person, for a whole run.

    Attributes:
        record: Record of each seat that the player holds.
        sit: Takes a seat of an episode.
    """

    record: SeatRecord
    sit: Callable[[SeatView], Seat]


class Wrapper:
    """A way in which seats read an episode. This one lets them read it as it happens; `episode_wrappers.py` has others.

    A wrapper has no state: one object serves all episodes of a job.
    """

    def start(self, episode: Episode) -> tuple[Session, Sequence[Session]]:
        """Returns the session of an episode, and the session that each seat reads when it begins."""
        session = episode.game.start(episode.state)
        return session, [session for _ in episode.game.roles]

    def seat(self, episode: Episode, number: int, seat: Seat, session: Session) -> Seat:
        """Returns what stands between the episode and a seat that began with a session; by default, the seat itself."""
        return seat

    def turn(self, session: Any, turn: TurnRecord) -> TurnRecord:
        """Returns the record of a turn that was just taken in the session that `start` returned."""
        return turn

    def record(self, episode: Episode, session: Any, record: EpisodeRecord) -> EpisodeRecord:
        """Returns the record of the finished episode, given the session that `start` returned."""
        return record


AS_IT_IS = Wrapper()


@dataclass
class Episode:
    """One episode with a player in each seat.

    Attributes:
        episode_id: Identifier, unique among all episodes; part of the session keys that engines receive.
        place: Seed of the run, group index, and number of the episode within its group.
        wrapper: Way in which the seats read the episode.
        after_turn: Called after each turn.
        turns: Turns so far.
        lost_to: Error of the engine if the episode ended with `ENGINE_FAILURE`; else None.
    """

    game: Game
    state: State
    players: Sequence[Player]
    episode_id: str
    place: Place
    wrapper: Wrapper = AS_IT_IS
    after_turn: Callable[[], None] = lambda: None
    turns: list[TurnRecord] = field(default_factory=list, init=False)
    lost_to: EngineError | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.session, sessions = self.wrapper.start(self)
        self.seats: list[Seat] = []
        for number, (player, session) in enumerate(zip(self.players, sessions, strict=True)):
            seat = player.sit(SeatView.at(self.game, session, number, self.episode_id, self.place))
            self.seats.append(self.wrapper.seat(self, number, seat, session))

    async def run(self, until: int | None = None) -> None:
        """Play to the end; an engine failure or a full context ends the episode with its own status.

        Args:
            until: Seat whose replies the caller supplies; play stops before its turn.
        """
        while (seats := self.session.seats) and seats[0] != until:
            try:
                self.take_turn(seats[0], await self.seats[seats[0]].act())
            except ContextFull:
                self.session.abort(Status.CONTEXT_LENGTH)
                return
            except PersonLeft:
                self.session.abort(Status.ABANDONED)
                return
            except EngineError as error:
                self.session.abort(Status.ENGINE_FAILURE)
                self.lost_to = error
                return

    def play_out(self) -> None:
        """Play to the end without an event loop, for seats that never wait, such as scripted players.

        Raises:
            RuntimeError: A seat waits for an answer.
        """
        try:
            self.run().send(None)
        except StopIteration:
            return
        raise RuntimeError("a seat waits for an answer; await `run` instead")

    def take_turn(self, seat: int, reply: Reply) -> None:
        """Apply one reply, of which at most `LONGEST_TURN` characters count, and pass the observations to the seats."""
        reply = bounded(reply)
        step = self.session.step(seat, reply.text, cut=reply.cut)
        for holder, observation in zip(self.seats, step.observations, strict=True):
            holder.observe(observation)
        self.turns.append(self.wrapper.turn(self.session, TurnRecord.of(seat, reply.text, step, reply.finish_reason)))
        self.after_turn()

    def record(self, policy: PolicyRecord) -> EpisodeRecord:
        """Returns the record of the finished episode.

        Args:
            policy: The player `policy`, even if it holds no seat.
        """
        seed, group, number = self.place
        usages = [seat.usage for seat in self.seats if seat.usage is not None]
        record = EpisodeRecord.of(
            [player.record for player in self.players],
            policy,
            episode_id=self.episode_id,
            group_index=group,
            episode=number,
            seed=seed,
            game=self.game.name,
            state=self.game.state_to_json(self.state),
            turns=self.turns,
            trajectories=[trajectory for seat in self.seats for trajectory in seat.finish()],
            outcome=OutcomeRecord.of(self.session.outcome()),
            prompt_tokens=sum(seat.prompt_tokens for seat in self.seats),
            cached_tokens=sum(seat.cached_tokens for seat in self.seats),
            partner=sum(usages, PartnerUsage()) if usages else None,
        )
        return self.wrapper.record(self, self.session, record)


def bounded(reply: Reply) -> Reply:
    """Returns a reply of at most `LONGEST_TURN` characters that can be stored as UTF-8."""
    text = storable(reply.text)
    cut = reply.cut or len(reply.text) > LONGEST_TURN
    return Reply(text, cut, "length" if cut and not reply.cut else reply.finish_reason)


def storable(text: str) -> str:
    """Returns the first `LONGEST_TURN` characters of a text, without surrogates, which UTF-8 cannot store."""
    return text[:LONGEST_TURN].encode("utf-8", "replace").decode()
