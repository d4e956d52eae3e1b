"""`selfplay play`: people play one episode after the other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, Status, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import Episode, Player
from selfplay_pipeline.generate.records import PERSON, EpisodeRecord
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.generate.seats import Backends, Servers, checkpoints_of, seat_players, seats_named
from selfplay_pipeline.generate.stage import check_seats, make_job
from selfplay_pipeline.people import person
from selfplay_pipeline.people.person import ForPeople, person_player

MOST_EPISODES = 1_000_000
"""Largest number of episodes of one file, so that a file may always be continued."""
FOR_PEOPLE = "default"
"""Set of prompts that people read, whatever set a model reads."""


class Screen(person.Screen, Protocol):
    """Place where people play episode after episode."""

    async def begin(self, game: Game, players: Sequence[str], number: int) -> None:
        """Announce the episode on the state with this number."""
        ...

    def end(self, record: EpisodeRecord, game: Game) -> None:
        """Show the result of an episode that has been stored."""
        ...

    async def goes_on(self) -> bool:
        """Whether the people play another episode."""
        ...


def default_output(seats: Sequence[str]) -> Path:
    """Returns a file below `data/played/` that is named after the players."""
    names = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") for name in seats)
    return Path("data/played") / names / "selfplay_games.jsonl"


def play_job(config: Config, output: Path, first_state: int, seats: Sequence[str]) -> GenerateJob:
    """Returns the job of one episode on each state from `first_state` on; the file may be continued for ever."""
    endless = {"num_episodes": MOST_EPISODES, "episodes_per_state": 1}
    config = config.model_copy(update={"generate": config.generate.model_copy(update=endless)})
    return make_job(config, output, str(config.model), 0, first_state, seats)


def check_play_together(config: Config, output: Path, first_state: int, seats: Sequence[str]) -> None:
    """Raises UserError unless these players can play and the file can be continued; writes nothing."""
    if PERSON not in seats:
        raise UserError(f"--player: no seat is held by {PERSON!r}; `selfplay generate` plays without people")
    check_folder(output.parent, "generate")
    check_seats(config, str(config.model), [name for name in seats if name != PERSON])
    play_job(config, output, first_state, seats).store.check()


async def play_episodes(
    config: Config, output: Path, seats: Sequence[str], screen: Screen, *, first_state: int = 0, limit: int = 0
) -> int:
    """Let people play the next episodes of a file, and return the number of stored episodes.

    An episode that a person leaves, or that a signal stops, is stored with the status `abandoned`.

    Args:
        config: The configuration.
        output: The JSONL file.
        seats: Name of each seat's player; at least one is `person`.
        screen: Place where people read and write.
        first_state: Number of the first game state.
        limit: Largest number of episodes; 0 plays until `screen` says no.

    Raises:
        UserError: A player cannot play, or the file was made with other arguments.
        EngineError: An episode was lost to the engine or the chat model; it is not stored.
    """
    check_play_together(config, output, first_state, seats)
    game = make_game(config.game)
    for_people = make_game(config.game.model_copy(update={"prompts": FOR_PEOPLE}))
    job = play_job(config, output, first_state, seats)
    others = [name for name in seats if name != PERSON]
    async with Servers(
        Backends.of(config), output.parent, at_once=len(checkpoints_of(game, others, str(config.model)))
    ) as servers:
        own_folder(output.parent, "generate")
        named = [seat for seat in seats_named(game, config.engine, seats, job.policy) if seat.name != PERSON]
        by_name = await seat_players(game, named, servers)
        players: list[Player] = [person_player(screen) if name == PERSON else by_name[name] for name in seats]
        done, stored = set[tuple[int, int]](), 0

        def take(record: EpisodeRecord) -> None:
            job.check_belongs(record)
            done.add((record.group_index, record.episode))

        with job.store.held(), job.store.opened(take) as append:
            for group, number in job.missing(done):
                state = game.sample_state(state_rng(config.seed, group))
                place = (job.seed, group, number)
                episode_id = job.episode_id(group, number)
                episode = Episode(game, state, players, episode_id, place, ForPeople(for_people))
                try:
                    await screen.begin(for_people, seats, group)
                    await episode.run()
                except (asyncio.CancelledError, KeyboardInterrupt):
                    episode.session.abort(Status.ABANDONED)
                    append(episode.record(job.policy))
                    raise
                if episode.lost_to is not None:
                    raise EngineError(f"the episode was lost: {episode.lost_to}; the same command plays it again")
                record = episode.record(job.policy)
                append(record)
                stored += 1
                screen.end(record, game)
                if record.outcome.status == Status.ABANDONED or stored == limit or not await screen.goes_on():
                    break
    return stored
