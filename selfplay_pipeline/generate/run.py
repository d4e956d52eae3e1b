"""Concurrent episodes: each advances as soon as its own reply arrives."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.core.model_sizes import longer_context
from selfplay_pipeline.core.reporting import Update, logger, progress
from selfplay_pipeline.core.stopping import stop
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import Game, State, Status
from selfplay_pipeline.generate.episode import AS_IT_IS, Episode, Player, Wrapper
from selfplay_pipeline.generate.records import EpisodeRecord, PolicyRecord
from selfplay_pipeline.generate.state_source import StateSource
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.generate.summary import Summary, line_of

MAX_FAILURES = 16
"""Number of episodes that may be lost to the server or the partner; so many are tried again at the end of the run.

If more are lost, the command stops, and `iterate` does not train on the rest. The same command, given again, plays the
lost episodes. `train-online` counts the lost episodes of each step.
"""


class NoTurnsError(RuntimeError):
    """No episode can be learned from: the context was full, or no turn was legal."""


@dataclass(frozen=True)
class GenerateJob:
    """The episodes to play and the file to write.

    Attributes:
        output: The JSONL file.
        num_groups: Number of game states, which are numbered `first_state` … `first_state + num_groups - 1`.
        episodes_per_state: Group size.
        arguments: All settings that determine the episodes; compared when the file is continued.
    """

    output: Path
    seed: int
    first_state: int
    num_groups: int
    episodes_per_state: int
    max_concurrency: int
    policy: PolicyRecord
    arguments: dict[str, Any]
    max_failures: int = MAX_FAILURES

    @property
    def num_episodes(self) -> int:
        return self.num_groups * self.episodes_per_state

    @property
    def store(self) -> EpisodeStore:
        return EpisodeStore(self.output, self.arguments)

    @property
    def summary_path(self) -> Path:
        return self.output.with_suffix(".summary.json")

    def episode_id(self, group: int, episode: int) -> str:
        return f"s{self.seed}-g{group:06d}-p{episode}"

    def missing(self, done: Container[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Yields state and number of each episode that is not done, in order."""
        for group in range(self.first_state, self.first_state + self.num_groups):
            for episode in range(self.episodes_per_state):
                if (group, episode) not in done:
                    yield group, episode

    def check_belongs(self, record: EpisodeRecord) -> None:
        """Raises ValueError unless the job contains the episode."""
        last = self.first_state + self.num_groups - 1
        if not (self.first_state <= record.group_index <= last and record.episode < self.episodes_per_state):
            raise ValueError(
                f"episode {record.episode_id} is of state {record.group_index}, episode {record.episode}, but this "
                f"run plays states {self.first_state} to {last}, {self.episodes_per_state} times each; remove the line"
            )


@dataclass(frozen=True)
class PlayTask:
    """A job with all that is needed to play it.

    Attributes:
        states: Function that returns the state with a given number.
        players: Function that returns the player of each seat, given the numbers of the game state and of the episode
            within its group.
        wrapper: Way in which the seats read the episodes.
    """

    job: GenerateJob
    game: Game
    states: Callable[[int], State]
    players: Callable[[int, int], Sequence[Player]]
    wrapper: Wrapper = AS_IT_IS


@dataclass(frozen=True)
class Phase:
    """Groups that are played after those of the phase before, because their players need other engines.

    Attributes:
        groups: Numbers of the game states.
        begin: Coroutine function that makes the players of the groups ready.
    """

    groups: Container[int]
    begin: Callable[[], Awaitable[None]]


async def run_tasks(tasks: Sequence[PlayTask], phases: Sequence[Phase] = ()) -> list[Summary]:
    """Play the episodes that are missing from the files of all jobs, and return the figures of each whole file.

    All jobs share one pool of at most `max_concurrency` episodes, so that the last episodes of a job do not keep the
    next job waiting.

    An episode that fails because of the engine or the chat model is not written. It is tried once more at the end, and
    again if the same command is repeated. The figures count the episodes that failed twice.

    Args:
        tasks: The jobs.
        phases: Groups in the order of playing, each group in one of them; by default, all groups are played together. A
            phase without a missing episode does not begin.

    Raises:
        EngineError: More than `max_failures` episodes of a job, or all, failed because of the engine or the chat model.
        NoTurnsError: Every episode of a job ended at the context length, or before the first turn; the file keeps all
            episodes.
        UserError: A file is in use by another process, was made with other arguments, or contains other episodes.
        FileChangedError: Another program changed a file during the run.
    """
    if not tasks:
        return []
    names = ", ".join(task.job.output.name for task in tasks)
    with progress(f"playing {names}") as report, ExitStack() as held:
        for task in tasks:
            held.enter_context(task.job.store.held())
        summaries = await _run_missing(tasks, report, phases or [Phase(EVERY_GROUP, _ready)])
        for task, summary in zip(tasks, summaries, strict=True):
            _check_played(task.job, summary)
            write_json(task.job.summary_path, summary.to_dict())
    for job, summary in zip((task.job for task in tasks), summaries, strict=True):
        if summary.failures:
            logger.warning(
                f"playing {job.output.name}: {summary.failures} of {job.num_episodes} episodes were lost twice to the "
                f"engine or the partner, at most {job.max_failures} may be"
            )
    return summaries


@dataclass
class _Playing:
    """A task whose file is open.

    Attributes:
        append: Function that stores an episode.
        done: State and number of each episode that was stored before.
        lost: Errors of the episodes that were lost, by state and number.
    """

    task: PlayTask
    summary: Summary
    append: Callable[[EpisodeRecord], None]
    done: set[tuple[int, int]]
    lost: dict[tuple[int, int], EngineError] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = StateSource(self.task.states, keep=2 * self.task.job.max_concurrency)

    @classmethod
    @contextmanager
    def opened(cls, task: PlayTask) -> Iterator[_Playing]:
        """Read the stored episodes and yield the task; closes the file at the end."""
        job, summary, done = task.job, Summary(), set[tuple[int, int]]()

        def take(record: EpisodeRecord) -> None:
            job.check_belongs(record)
            done.add((record.group_index, record.episode))
            summary.add(record)

        with job.store.opened(take) as append:
            summary.start()
            yield cls(task, summary, append, done)

    async def play(self, group: int, number: int, tell: Callable[[_Playing], None]) -> None:
        """Play one episode, count it, and store it unless it was lost.

        Args:
            tell: Called when the episode is counted.

        Raises:
            EngineError: Too many episodes were lost.
        """
        task, job = self.task, self.task.job
        state, place = await self.states.state(group), (job.seed, group, number)
        players, episode_id = task.players(group, number), job.episode_id(group, number)
        episode = Episode(task.game, state, players, episode_id, place, task.wrapper)
        await episode.run()
        if stop.asked is not None:
            return  # its last turns may be those of an engine that was stopping
        record = episode.record(job.policy)
        self.summary.add(record)
        tell(self)
        if episode.lost_to is None:
            self.append(record)
            return
        self.lost[group, number] = episode.lost_to
        if len(self.lost) > job.max_failures:
            raise EngineError(
                f"{len(self.lost)} episodes were lost to the engine or the partner, the last to: "
                f"{episode.lost_to}; {job.num_episodes - self.summary.episodes + self.summary.failures} of "
                f"{job.num_episodes} episodes are missing in {job.output}; the same command plays them"
            )

    def missing(self) -> Iterator[tuple[int, int]]:
        """Yields state and number of each episode to play, in order."""
        return self.task.job.missing(self.done)

    def again(self, groups: Container[int]) -> list[tuple[int, int]]:
        """Forgets the lost episodes of some states, and returns state and number of each."""
        lost = [place for place in self.lost if place[0] in groups]
        for place in lost:
            del self.lost[place]
        self.summary.statuses.pop(Status.ENGINE_FAILURE.value, None)
        self.summary.statuses.update({Status.ENGINE_FAILURE.value: len(self.lost)} if self.lost else {})
        return lost


EVERY_GROUP = range(sys.maxsize)


async def _ready() -> None:
    """Do nothing, since all players are ready."""


async def _run_missing(tasks: Sequence[PlayTask], report: Update, phases: Sequence[Phase]) -> list[Summary]:
    total = sum(task.job.num_episodes for task in tasks)
    workers = min(total, max(task.job.max_concurrency for task in tasks))
    main = asyncio.current_task()
    with ExitStack() as files:
        pool = [files.enter_context(_Playing.opened(task)) for task in tasks]
        summaries = {playing.task.job.output.stem: playing.summary for playing in pool}
        started = time.monotonic()

        def tell(played: _Playing | None = None) -> None:
            if played is not None:
                played.summary.seconds = time.monotonic() - started
            done = sum(playing.summary.episodes for playing in pool)
            report(done, total, lambda: line_of(summaries, time.monotonic() - started))

        async def worker(episodes: Iterator[tuple[_Playing, int, int]]) -> None:
            for playing, group, number in episodes:
                # Scripted players never wait, so without this Ctrl-C would take effect one episode per worker later.
                await asyncio.sleep(0)
                if stop.asked is not None or (main is not None and main.cancelling()):
                    return
                await playing.play(group, number, tell)

        async def play_all(episodes: Iterator[tuple[_Playing, int, int]]) -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(worker(episodes))
            stop.check()

        tell()
        for phase in phases:
            wanted = _wanted(pool, phase.groups)
            if (first := next(wanted, None)) is None:
                continue
            await phase.begin()
            await play_all(chain([first], wanted))
            if again := [(playing, *place) for playing in pool for place in playing.again(phase.groups)]:
                await play_all(iter(again))
    for playing in pool:
        summary = playing.summary
        if summary.episodes == summary.failures:
            raise EngineError(
                f"all {summary.episodes} episodes were lost to the engine or the partner, the last to: "
                f"{list(playing.lost.values())[-1]}; fix that, and the same command plays them"
            )
    return [playing.summary for playing in pool]


def _wanted(pool: Sequence[_Playing], groups: Container[int]) -> Iterator[tuple[_Playing, int, int]]:
    """Yields each missing episode of some states with its task; lazily, since there may be millions."""
    return ((playing, *place) for playing in pool for place in playing.missing() if place[0] in groups)


def _check_played(job: GenerateJob, summary: Summary) -> None:
    played = summary.episodes - summary.failures
    turns = summary.figures["turns_per_episode"]
    if turns and summary.statuses[Status.CONTEXT_LENGTH.value] < played:
        return
    statuses = ", ".join(f"{name} {count}" for name, count in sorted(summary.statuses.items()))
    longer = longer_context(job.policy.checkpoint, job.arguments.get("engine.context_length"))
    raise NoTurnsError(
        f"{job.output}: no episode was played to its end ({statuses}; {turns:.1f} turns an "
        f"episode), because one more turn of {job.policy.max_new_tokens} tokens might not fit into the context of "
        f"{job.policy.checkpoint}; use smaller states (section `game`), shorter prompts (game.prompts: compact), "
        f"shorter turns (generate.max_new_tokens), or {longer}; and give another --output; these episodes are kept for "
        "reading"
    )
