"""Episodes of two players on fixed states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import differences, portable
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.evaluate.states import StateSet
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import AS_IT_IS, Player
from selfplay_pipeline.generate.episode_wrappers import Swap, Swapped
from selfplay_pipeline.generate.records import POLICY
from selfplay_pipeline.generate.run import GenerateJob, PlayTask, run_tasks
from selfplay_pipeline.generate.seats import (
    Servers,
    check_players,
    checkpoints_among,
    seat_players,
    seats_named,
    weights_of,
)
from selfplay_pipeline.generate.stage import policy_record, record_of
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.generate.summary import Played


@dataclass(frozen=True)
class Pairing:
    """Two players and the states that they play.

    Attributes:
        first: Player of `seat`: a checkpoint, a scripted player or `chat`.
        second: Player of all other seats; equal to `first` in self-play.
        file: JSONL file of the episodes.
        episodes: Number of episodes of each state, or, with `both_seatings`, of each state and seat of `first`.
        greedy: Whether checkpoints play greedily.
        both_seatings: Whether `first` holds each seat in turn.
        swap: Rule by which heard messages are replaced; None for the original messages.
        seat: Seat of `first`, without `both_seatings`.
    """

    first: str
    second: str
    states: StateSet
    file: Path
    episodes: int
    greedy: bool = False
    both_seatings: bool = False
    swap: Swap | None = None
    seat: int = 0

    def job(self, config: Config) -> GenerateJob:
        """Returns the job, with all settings that determine the episodes."""
        game, engine, names = make_game(config.game), config.engine, (self.first, self.second)
        checkpoints = checkpoints_among(game, names)
        first = checkpoints[0] if checkpoints else "scripted"
        policy = policy_record(config, first, weights_of(engine, first) if checkpoints else "", greedy=self.greedy)
        arguments = {
            **record_of(config, "evaluate", policy, seats_named(game, engine, names, policy)),
            "first": self.first,
            "second": self.second,
            **self.states.identity,
            "episodes": self.episodes,
            "both_seatings": self.both_seatings,
            **({"swap": self.swap} if self.swap else {}),
            **({"seat": self.seat} if self.seat else {}),
        }
        return GenerateJob(
            output=self.file,
            seed=0,
            first_state=0,
            num_groups=len(self.states),
            episodes_per_state=self.episodes * (len(game.roles) if self.both_seatings else 1),
            max_concurrency=config.generate.max_concurrency,
            policy=policy,
            arguments=portable(arguments, self.file),
        )


def comparable(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two jobs have the same arguments, except for the evaluated player and muted messages."""

    def partner(arguments: dict[str, Any]) -> str:
        if arguments["second"] == arguments["first"]:
            return "itself"
        return str(arguments["weights.1"] or arguments["second"])  # a checkpoint is its contents, not its path

    may_differ = {"first", "second", "weights.0", "weights.1", "policy.weights", "model", "engine.kind", "game.mute"}
    may_differ |= {"states", "num_states", "evaluate.state_seed"}  # their contents are compared instead
    return differences(other, one).keys() <= may_differ and partner(one) == partner(other)


def check_names(config: Config, names: Iterable[str]) -> None:
    """Raises UserError unless each name is a checkpoint, a scripted player or `chat`."""
    names = list(names)
    if POLICY in names:
        raise UserError(f"{POLICY!r} is not allowed here; give a checkpoint folder")
    check_players(make_game(config.game), names)


def check_meeting(config: Config, asked: str) -> None:
    """Raises UserError if the game has one seat, so that nobody plays with a partner.

    Args:
        asked: Command or option that needs two players.
    """
    if len(make_game(config.game).roles) == 1:
        raise UserError(f"{asked}: the game {config.game.name} has one seat, so that nobody plays with a partner")


def check_begun(config: Config, pairing: Pairing) -> None:
    """Raises UserError if the file of a pairing was begun with other arguments; checkpoints are read only if it was."""
    if EpisodeStore(pairing.file, {}).arguments_path.exists():
        pairing.job(config).store.check()


async def play_pairing(config: Config, pairing: Pairing, servers: Servers) -> int:
    """Play the missing episodes of one pairing; returns the number of lost episodes, as `play_pairings` does."""
    (lost,) = await play_pairings(config, [pairing], servers)
    return lost


async def play_pairings(config: Config, pairings: Sequence[Pairing], servers: Servers) -> list[int]:
    """Play the missing episodes of all pairings in one pool.

    The first checkpoint of the two players of a pairing is recorded as its policy.

    Args:
        config: The configuration.
        pairings: Pairings of the same players.
        servers: Servers of the players.

    Returns:
        For each pairing, the number of episodes that failed because of the engine or a chat model.
    """
    jobs = {pairing.file: job for pairing in pairings if not _is_whole(job := pairing.job(config))}
    for job in jobs.values():
        job.store.check()  # before the slow start of a server
    tasks = [
        await _play_task(config, pairing, jobs[pairing.file], servers) for pairing in pairings if pairing.file in jobs
    ]
    lost = {task.job.output: summary.failures for task, summary in zip(tasks, await run_tasks(tasks), strict=True)}
    return [lost.get(pairing.file, 0) for pairing in pairings]


async def _play_task(config: Config, pairing: Pairing, job: GenerateJob, servers: Servers) -> PlayTask:
    """Returns the task of a pairing; starts the engines of its players."""
    names = [POLICY if name == job.policy.checkpoint else name for name in (pairing.first, pairing.second)]
    game = make_game(config.game)
    by_name = await seat_players(game, seats_named(game, config.engine, names, job.policy), servers)
    seats = range(len(game.roles))
    seatings = [[by_name[names[seat != own]] for seat in seats] for own in seats]

    def players(group: int, number: int) -> Sequence[Player]:
        return seatings[number % len(seatings) if pairing.both_seatings else pairing.seat]

    states = pairing.states.states
    wrapper = Swapped(pairing.swap, states) if pairing.swap else AS_IT_IS
    return PlayTask(job, game, states.__getitem__, players, wrapper)


def _is_whole(job: GenerateJob) -> bool:
    """Whether all episodes of the job have been played without failures, and their file still has them all."""
    if not job.summary_path.exists():
        return False
    if differences(read_object(job.store.arguments_path, "selfplay evaluate"), job.arguments):
        return False
    if not job.store.is_complete(job.missing(())):
        return False
    return Status.ENGINE_FAILURE.value not in read_model(job.summary_path, Played, "selfplay evaluate").statuses
