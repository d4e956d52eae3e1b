"""People who play over the web, and their episodes: seats, running episodes, ended episodes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, state_rng
from selfplay_pipeline.generate.episode import Player
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.generate.state_source import StateSource
from selfplay_pipeline.people.log import BegunLine, Line, LostLine, PersonLine, TurnLine
from selfplay_pipeline.people.logged_episode import LoggedEpisode

PRESENT = 60.0
"""Seconds after the last request for which a person still counts as waiting for another one."""


@dataclass
class Someone:
    """A person who plays.

    Attributes:
        name: Anonymous name.
        key_hash: Hash of the key that only the person's browser holds.
        episode_id: Newest episode of the person; "" before the first one.
        waits: Whether the person waits for others to begin an episode.
        starts: Whether an episode of the person is being prepared.
        seen: Time of the last request by the monotonic clock.
        lost: Whether the newest episode was lost to the engine.
    """

    name: str
    key_hash: str
    episode_id: str = ""
    waits: bool = False
    starts: bool = False
    seen: float = 0.0
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def number(self) -> int:
        """Number of the person, from 0 in the order of arrival."""
        return int(self.name.removeprefix("p")) - 1


@dataclass
class Past:
    """Content of the log and of the file of episodes when the server starts."""

    people: list[PersonLine] = field(default_factory=list)
    begun: dict[str, BegunLine] = field(default_factory=dict)
    turns: dict[str, list[TurnLine]] = field(default_factory=dict)

    @classmethod
    def of(cls, lines: Iterator[Line]) -> Past:
        """Returns the content of a log."""
        past = cls()
        for line in lines:
            if isinstance(line, PersonLine):
                past.people.append(line)
            elif isinstance(line, BegunLine):
                past.begun[line.episode_id], past.turns[line.episode_id] = line, []
            elif isinstance(line, TurnLine):
                past.turns.setdefault(line.episode_id, []).append(line)
            else:
                past.begun.pop(line.episode_id, None)
        return past


class Lobby:
    """All people and episodes of one server."""

    def __init__(
        self,
        games: tuple[Game, Game],
        job: GenerateJob,
        players: Sequence[Player],
        ended: Mapping[str, EpisodeRecord],
        writers: tuple[Callable[[EpisodeRecord], None], Callable[[Line], None]],
        *,
        patience: float,
        limit: int,
    ) -> None:
        """Make a lobby without people.

        Args:
            games: The game, and the same with the prompts for people.
            players: Player of each seat.
            ended: Stored episodes by id.
            writers: Functions that store an episode, and a line of the log.
            patience: Seconds after which a person who does not answer has left.
            limit: Largest number of stored episodes; 0 for no limit.
        """
        (self.game, self.for_people), self.job, self.players = games, job, players
        self.ended = {name: _brief(record) for name, record in ended.items()}
        self._store, self._log = writers
        self.patience, self.limit = patience, limit
        self.people: dict[str, Someone] = {}
        self.running: dict[str, LoggedEpisode] = {}
        self.seats_of: dict[str, dict[int, str]] = {}
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._states = StateSource(lambda number: self.game.sample_state(state_rng(job.seed, number)), keep=64)
        self._taken = {(record.group_index, record.episode) for record in ended.values()}
        self._next = job.missing(self._taken)
        self._again: list[tuple[int, int]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def free_seats(self) -> list[int]:
        """Seats that people hold."""
        return [seat for seat, player in enumerate(self.players) if player.record.kind == "person"]

    def is_over(self, person: Someone | None) -> bool:
        """Whether a person may begin no further episode."""
        return bool(self.limit) and len(self._taken) >= self.limit

    def progress_of(self, person: Someone) -> tuple[int, int] | None:
        """Returns the numbers of a person's episodes so far and in all; None if the latter is not fixed."""
        return None

    async def resume(self, past: Past) -> None:
        """Bring back the people of the log, and let unfinished episodes go on."""
        for line in past.people:
            self.people[line.key_hash] = Someone(line.person, line.key_hash)
        by_name = {person.name: person for person in self.people.values()}
        for begun in past.begun.values():
            self.seats_of[begun.episode_id] = begun.people
            for name in begun.people.values():
                by_name[name].episode_id = begun.episode_id
            if begun.episode_id not in self.ended:
                place = self._place_of(begun)
                self._taken.add(place)
                turns = past.turns[begun.episode_id]
                self._start(await self._seat(begun.episode_id, place, begun.people, turns))

    def welcome(self, key: str, consent: str | None = None) -> Someone:
        """Returns a new person.

        Args:
            key: Key that the person's browser must bring.
            consent: Text to which the person has agreed; None without a study.
        """
        person = Someone(f"p{len(self.people) + 1}", hash_of(key), seen=time.monotonic())
        agreed = None if consent is None else hash_of(consent)
        self._log(PersonLine(at=time.time(), person=person.name, key_hash=person.key_hash, consent=agreed))
        self.people[person.key_hash] = person
        return person

    def person(self, key: str) -> Someone | None:
        """Returns the person with a key; None if there is none."""
        person = self.people.get(hash_of(key))
        if person is not None:
            person.seen = time.monotonic()
        return person

    def is_busy(self, person: Someone) -> bool:
        """Whether the person's newest episode is still running."""
        return person.episode_id in self.running

    def seat_of(self, person: Someone, episode_id: str) -> int | None:
        """Returns the seat of a person in an episode; None if the person has none there."""
        seats = self.seats_of.get(episode_id, {})
        return next((seat for seat, name in seats.items() if name == person.name), None)

    async def ask_for_episode(self, person: Someone) -> None:
        """Seat a person in a new episode as soon as enough people wait; a person has one episode at a time."""
        if person.starts or self.is_busy(person) or self.is_over(person):
            return
        person.waits = True
        person.begun.clear()
        now = time.monotonic()
        waiting = [one for one in self.people.values() if one.waits and now - one.seen < PRESENT]
        if len(waiting) >= len(self.free_seats):
            place = self._again.pop() if self._again else next(self._next)
            await self._begin(place, dict(zip(self.free_seats, waiting, strict=False)))

    async def _begin(self, place: tuple[int, int], seated: Mapping[int, Someone], number: int | None = None) -> None:
        """Begin an episode.

        Args:
            place: Number of the state, and number of the episode within its group.
            seated: Person of each seat that a person holds.
            number: Number of the episode in the person's list of a study.
        """
        self._taken.add(place)
        for one in seated.values():
            one.waits, one.starts = False, True
        for one in self.people.values():
            if one.waits and self.is_over(one):  # nobody can wait for an episode after the last
                one.waits = False
                one.begun.set()
        try:
            people = {seat: one.name for seat, one in seated.items()}
            kept = await self._seat(self.job.episode_id(*place), place, people, ())
            self._log(
                BegunLine(at=time.time(), episode_id=kept.episode_id, group=place[0], people=people, place=number)
            )
            self._start(kept)
        except BaseException:  # nothing was begun, so the place is played later
            self._taken.discard(place)
            self._again.append(place)
            raise
        finally:
            for one in seated.values():
                one.starts = False
        for one in self.people.values():
            if one.episode_id == kept.episode_id:  # the place of an episode that was lost is played again
                one.episode_id = ""
        for one in seated.values():
            one.episode_id = kept.episode_id
            one.begun.set()

    def _place_of(self, begun: BegunLine) -> tuple[int, int]:
        """Returns the number of the state and of the episode within its group of a logged episode."""
        return begun.group, 0

    async def _seat(
        self, episode_id: str, place: tuple[int, int], people: dict[int, str], turns: Sequence[TurnLine]
    ) -> LoggedEpisode:
        group, number = place
        return LoggedEpisode(
            self.game,
            await self._states.state(group),
            self.players,
            episode_id,
            (self.job.seed, group, number),
            for_people=self.for_people,
            people=people,
            log=self._log,
            kept=turns,
            patience=self.patience,
        )

    def _start(self, kept: LoggedEpisode) -> None:
        self.running[kept.episode_id], self.seats_of[kept.episode_id] = kept, kept.people
        task = asyncio.create_task(self._play(kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _play(self, kept: LoggedEpisode) -> None:
        """Play and store one episode; an error that is not the engine's stops the server."""
        try:
            await kept.play()
            if kept.episode.lost_to is None:
                record = kept.episode.record(self.job.policy)
                self._store(record)
                self.ended[kept.episode_id] = _brief(record)
            else:
                self._lose(kept, kept.episode.lost_to)
            del self.running[kept.episode_id]
            kept.change()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    def _lose(self, kept: LoggedEpisode, error: EngineError) -> None:
        logger.warning(f"{kept.episode_id}: lost to the engine or the partner: {error}; its state is played again")
        self._log(LostLine(at=time.time(), episode_id=kept.episode_id))
        _seed, group, number = kept.episode.place
        self._taken.discard((group, number))
        self._again.append((group, number))

    async def close(self) -> None:
        """Stop all episodes; the log has all their turns."""
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def hash_of(key: str) -> str:
    """Returns the hash that is stored in place of a person's key or a consent text."""
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def _brief(record: EpisodeRecord) -> EpisodeRecord:
    """Returns a record without tokens, which no page shows."""
    return record.model_copy(update={"trajectories": []})
