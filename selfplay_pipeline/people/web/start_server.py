"""`selfplay play --web`: one server, which continues where the last one with the same file stopped."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import own_folder
from selfplay_pipeline.core.loopback import ADDRESS
from selfplay_pipeline.core.server_keys import SHORTEST_SECRET, key_from_environment
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import Player
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.generate.seats import Backends, Servers, checkpoints_of, seat_players, seats_named
from selfplay_pipeline.people.log import BegunLine, Line, TurnLine, log_path, opened_log, read_log
from selfplay_pipeline.people.logged_episode import SOMEBODY
from selfplay_pipeline.people.play import FOR_PEOPLE, check_play_together, play_job
from selfplay_pipeline.people.web.connections import listening
from selfplay_pipeline.people.web.lobby import Lobby, Past, Someone
from selfplay_pipeline.people.web.server import Server
from selfplay_pipeline.people.web.study import OpenStudy, check_study
from selfplay_pipeline.people.web.study_lobby import StudyLobby

PORT = 8230
"""Default port."""
HTTP_PORT = 80
"""Port that addresses leave out."""
DOOR_KEY = "SELFPLAY_PLAY_KEY"
"""Variable with the key that people type to play from other machines."""
Ended: TypeAlias = Mapping[str, EpisodeRecord]
"""Stored episodes by id."""
Writers: TypeAlias = tuple[Callable[[EpisodeRecord], None], Callable[[Line], None]]
"""Functions that store an episode, and a line of the log."""
SeatsOf: TypeAlias = Callable[[BegunLine], tuple[int, Sequence[int]]]
"""Returns an episode's number within its group, and the seats of people in it."""
LOCAL = ("127.0.0.1", "localhost", "::1")
"""Addresses that other machines cannot reach."""


@dataclass(frozen=True)
class Place:
    """Address of the pages, and the patience with people.

    Attributes:
        patience: Minutes after which a person who does not answer has left.

    Raises:
        UserError: `listen` cannot be the address or name of a machine.
    """

    listen: str = ADDRESS
    port: int = PORT
    patience: float = 30.0

    def __post_init__(self) -> None:
        try:
            self.listen.encode("idna")
        except UnicodeError:
            raise UserError(f"--listen {self.listen}: not the address or name of a machine; give one") from None

    @property
    def is_local(self) -> bool:
        """Whether other machines cannot reach the address."""
        return self.listen in LOCAL

    @property
    def url(self) -> str:
        """Address for a browser."""
        return f"http://{self.authority(self.listen)}/"

    def authority(self, host: str) -> str:
        """Returns host and port as an address has them; browsers leave out the usual port of HTTP."""
        named = f"[{host}]" if ":" in host else host
        return named if self.port == HTTP_PORT else f"{named}:{self.port}"


def door_key(place: Place) -> str:
    """Returns the key that people must type; "" on the loopback address.

    Raises:
        UserError: Other machines can reach the address, and there is no key of enough characters.
    """
    key = "" if place.is_local else key_from_environment(DOOR_KEY)
    if not place.is_local and len(key) < SHORTEST_SECRET:
        raise UserError(
            f"--listen {place.listen}: other machines can reach this address, so people need a key: set {DOOR_KEY} to "
            f"{SHORTEST_SECRET} characters or more, and tell it to those who may play (docs/security.md)"
        )
    return key


def check_web(config: Config, output: Path, first_state: int, seats: Sequence[str], place: Place) -> None:
    """Raises UserError unless the server can start and its files can be continued; writes nothing."""
    check_play_together(config, output, first_state, seats)
    door_key(place)
    _read_past(play_job(config, output, first_state, seats), len(seats), _seats_of_people(seats))


def check_study_pages(config: Config, output: Path, study: OpenStudy, place: Place) -> None:
    """Raises UserError unless the server of a study can start and its files can be continued; writes nothing."""
    check_study(config, output, study)
    door_key(place)
    _read_past(study.job(config, output), len(make_game(config.game).roles), _seats_in_study(study))


def _seats_of_people(seats: Sequence[str]) -> SeatsOf:
    free = [seat for seat, name in enumerate(seats) if name == PERSON]
    return lambda begun: (0, free)


def _seats_in_study(study: OpenStudy) -> SeatsOf:
    def find(begun: BegunLine) -> tuple[int, Sequence[int]]:
        person = Someone(min(begun.people.values(), default="p1"), "").number
        return person, [trial.seat for trial in study.order.trials(person) if trial.state == begun.group]

    return find


def _read_past(job: GenerateJob, roles: int, seats_of: SeatsOf) -> Past:
    """Returns the content of the log next to a job's file; its game has `roles` seats.

    Raises:
        UserError: A line is invalid, or its episode is none of the job's.
    """

    def check(line: Line) -> str:
        if isinstance(line, TurnLine) and not 0 <= line.seat < roles:
            return f"field 'seat': {line.seat}, but the game has {roles} seats"
        if not isinstance(line, BegunLine):
            return ""
        number, seats = seats_of(line)
        if not job.first_state <= line.group < job.first_state + job.num_groups:
            return f"field 'group': there is no state {line.group} here"
        if sorted(line.people) != sorted(seats):
            return f"field 'people': seats {sorted(line.people)}, but people hold seats {sorted(seats)} on this state"
        if line.episode_id != (name := job.episode_id(line.group, number)):
            return f"field 'episode_id': {line.episode_id:.60}, but this episode is {name}"
        return ""

    return Past.of(read_log(log_path(job.output), check))


def both(config: Config) -> tuple[Game, Game]:
    """Returns the configured game, and the same with the prompts for people."""
    return make_game(config.game), make_game(config.game.model_copy(update={"prompts": FOR_PEOPLE}))


async def serve_people(
    config: Config,
    output: Path,
    seats: Sequence[str],
    place: Place,
    announce: Callable[[str], None],
    *,
    first_state: int = 0,
    limit: int = 0,
) -> None:
    """Let people play in their browsers until a signal stops the server.

    Args:
        config: The configuration.
        output: The JSONL file.
        seats: Name of each seat's player; at least one is `person`.
        place: Address and patience.
        announce: Called with the address once people may come.
        first_state: Number of the first game state.
        limit: Largest number of episodes of the file; 0 for no limit.

    Raises:
        UserError: A player cannot play, a file was made with other arguments, or the address cannot be used.
    """
    job = play_job(config, output, first_state, seats)
    check_web(config, output, first_state, seats, place)

    def make(by_name: Mapping[str, Player], ended: Ended, writers: Writers) -> Lobby:
        players = [SOMEBODY if name == PERSON else by_name[name] for name in seats]
        return Lobby(both(config), job, players, ended, writers, patience=60 * place.patience, limit=limit)

    about = {"players": ", ".join(f"seat {seat}: {name}" for seat, name in enumerate(seats))}
    await _serve(config, place, job, seats, _seats_of_people(seats), make, about, announce)


async def serve_study(
    config: Config, output: Path, study: OpenStudy, place: Place, announce: Callable[[str], None]
) -> None:
    """Let the people of a study play in their browsers until a signal stops the server.

    Raises:
        UserError: A partner cannot play, a file was made with other arguments, or the address cannot be used.
    """
    check_study_pages(config, output, study, place)

    def make(by_name: Mapping[str, Player], ended: Ended, writers: Writers) -> Lobby:
        return StudyLobby(study, both(config), job, by_name, ended, writers, patience=60 * place.patience)

    job = study.job(config, output)
    about = {"players": "", "study": study.study}
    await _serve(config, place, job, study.study.partners, _seats_in_study(study), make, about, announce)


async def _serve(
    config: Config,
    place: Place,
    job: GenerateJob,
    names: Sequence[str],
    seats_of: SeatsOf,
    make: Callable[[Mapping[str, Player], Ended, Writers], Lobby],
    about: Mapping[str, Any],
    announce: Callable[[str], None],
) -> None:
    """Serve the pages of a lobby until a signal stops the server.

    Args:
        config: The configuration.
        place: Address and patience.
        job: All episodes that may be played.
        names: Players that hold seats; people are left out.
        seats_of: Who holds which seats.
        make: Returns the lobby, given the players by name, the stored episodes and the functions that store more.
        about: What pages say of the players and of the study.
        announce: Called with the address once people may come.
    """
    output, others = job.output, [name for name in names if name != PERSON]
    ended: dict[str, EpisodeRecord] = {}

    def take(record: EpisodeRecord) -> None:
        job.check_belongs(record)
        ended[record.episode_id] = record

    async with AsyncExitStack() as stack:
        own_folder(output.parent, "generate")
        game = make_game(config.game)
        at_once = len(checkpoints_of(game, others, str(config.model)))
        servers = await stack.enter_async_context(Servers(Backends.of(config), output.parent, at_once=at_once))
        by_name = await seat_players(game, seats_named(game, config.engine, others, job.policy), servers)
        stack.enter_context(job.store.held())
        store = stack.enter_context(job.store.opened(take))
        past = _read_past(job, len(game.roles), seats_of)
        log = stack.enter_context(opened_log(log_path(output)))
        lobby = make(by_name, ended, (store, log))
        stack.push_async_callback(lobby.close)
        await lobby.resume(past)
        about = {"game": game.name, "about": game.describe(), "patience": f"{place.patience:g} minutes", **about}
        hosts = frozenset(map(place.authority, LOCAL)) if place.is_local else frozenset()
        server = Server(lobby, about, door_key(place), hosts, str(output.absolute()))
        try:
            await stack.enter_async_context(listening(server.app(), place.listen, place.port))
        except OSError as error:
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror
            raise UserError(f"{place.url}: cannot listen there ({reason}); give another --port or --listen") from None
        announce(place.url)
        await asyncio.shield(lobby.failed)
