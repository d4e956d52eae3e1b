"""Many plays at once: every play advances as soon as its own reply arrives."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.files import write_json
from selfplay_pipeline.games.base import Game, State, Status
from selfplay_pipeline.generate.chat import ChatSeat
from selfplay_pipeline.generate.play import Play
from selfplay_pipeline.generate.players import Place, Player
from selfplay_pipeline.generate.records import OutcomeRecord, PartnerUsage, PlayRecord, PolicyRecord
from selfplay_pipeline.generate.sampling import StateSource
from selfplay_pipeline.generate.store import GameStore
from selfplay_pipeline.generate.summary import Summary


class NoTurnsError(RuntimeError):
    """Every play of a run ended because the model's context was full."""


@dataclass(frozen=True)
class GenerateJob:
    """What to play.

    Attributes:
        output: the JSONL file.
        num_groups: game states; their numbers are `first_state` … `first_state + num_groups - 1`.
        plays_per_state: G.
        arguments: all that decides the plays, for the check at resume.
    """

    output: Path
    seed: int
    first_state: int
    num_groups: int
    plays_per_state: int
    max_concurrency: int
    max_failures: int
    policy: PolicyRecord
    arguments: dict[str, Any]

    @property
    def num_plays(self) -> int:
        return self.num_groups * self.plays_per_state

    @property
    def store(self) -> GameStore:
        return GameStore(self.output, self.arguments)

    @property
    def summary_path(self) -> Path:
        return self.output.with_suffix(".summary.json")

    def game_id(self, group: int, play: int) -> str:
        return f"s{self.seed}-g{group:06d}-p{play}"

    def check_belongs(self, record: PlayRecord) -> None:
        """Whether a play is one of these.

        Raises:
            ValueError: it is not.
        """
        last = self.first_state + self.num_groups - 1
        if not (self.first_state <= record.group_index <= last and record.play < self.plays_per_state):
            raise ValueError(
                f"play {record.game_id} is of state {record.group_index}, play {record.play}, but this run plays "
                f"states {self.first_state} to {last}, {self.plays_per_state} times each; remove the line"
            )


async def run_generate(
    job: GenerateJob,
    game: Game,
    states: Callable[[int], State],
    players: Callable[[int], Sequence[Player]],
    on_play: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Play what is missing from `job.output` and return the figures of the whole file.

    A play that the engine or the partner failed is not written, so that it is missing still: it is tried once more
    at the end, and then by the same command given again. The figures count what is lost in the end.

    Args:
        states: the state of each number.
        players: who sits where, by the number of the play within its group.
        on_play: called with the figures so far, after each play.

    Raises:
        EngineError: more than `max_failures` plays, or all, were lost to the engine or the partner.
        NoTurnsError: every play ended at the context length, or before anyone spoke; the file keeps all plays.
        UserError: the file belongs to another process or to other arguments, or holds what is none of these plays.
        FileChangedError: another program changed the file meanwhile.
    """
    with job.store.held():
        summary = await _play_missing(job, game, states, players, on_play)
        _check_played(job, summary)
        write_json(job.summary_path, summary.to_dict())
    return summary


async def _play_missing(
    job: GenerateJob,
    game: Game,
    states: Callable[[int], State],
    players: Callable[[int], Sequence[Player]],
    on_play: Callable[[Summary], None],
) -> Summary:
    summary, done = Summary(), set[tuple[int, int]]()

    def take(record: PlayRecord) -> None:
        job.check_belongs(record)
        done.add((record.group_index, record.play))
        summary.add(record)

    with job.store.opened(take) as append:
        summary.start()
        on_play(summary)
        started = time.monotonic()
        main = asyncio.current_task()

        source = StateSource(states, keep=2 * job.max_concurrency)
        lost: dict[tuple[int, int], EngineError] = {}

        async def worker(missing: Iterator[tuple[int, int]]) -> None:
            for group, number in missing:
                # Scripts wait for nothing, so that Ctrl-C would be heard only after one more play of each worker.
                await asyncio.sleep(0)
                if main is not None and main.cancelling():
                    return
                place = (job.seed, group, number)
                state = await source.state(group)
                sitting = Sitting(game, state, players(number), job.game_id(group, number), place)
                await sitting.play.run()
                record = sitting.record(job.policy)
                summary.add(record)
                summary.seconds = time.monotonic() - started
                on_play(summary)
                if sitting.play.lost_to is None:
                    append(record)
                    continue
                lost[group, number] = sitting.play.lost_to
                if len(lost) > job.max_failures:
                    raise EngineError(
                        f"{len(lost)} plays were lost to the engine or the partner, the last to: "
                        f"{sitting.play.lost_to}; {job.num_plays - summary.plays + summary.failures} of "
                        f"{job.num_plays} plays are missing in {job.output}; the same command plays them"
                    )

        async def play_all(missing: Iterator[tuple[int, int]]) -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(job.max_concurrency, job.num_plays)):
                    tasks.create_task(worker(missing))

        await play_all(_missing(job, done))
        if lost:
            again = list(lost)
            lost.clear()
            summary.statuses.pop(Status.ENGINE_FAILURE.value)
            await play_all(iter(again))
        summary.seconds = time.monotonic() - started
    if summary.plays == summary.failures:
        raise EngineError(
            f"all {summary.plays} plays were lost to the engine or the partner, the last to: "
            f"{list(lost.values())[-1]}; fix that, and the same command plays them"
        )
    return summary


def _check_played(job: GenerateJob, summary: Summary) -> None:
    played = summary.plays - summary.failures
    if summary.turns and summary.statuses[Status.CONTEXT_LENGTH.value] < played:
        return
    statuses = ", ".join(f"{name} {count}" for name, count in sorted(summary.statuses.items()))
    raise NoTurnsError(
        f"{job.output}: no play was played to its end ({statuses}; {summary.turns / played:.1f} turns a play), because "
        f"one more turn of {job.policy.max_new_tokens} tokens might not fit into the context of "
        f"{job.policy.checkpoint}; use smaller states (section `game`), shorter prompts (game.prompts: compact), "
        "shorter turns (generate.max_new_tokens) or a model with a longer context, and another --output; these games "
        "are kept for reading"
    )


@dataclass
class Sitting:
    """The players of one play at the table: the play in progress, and its record once it has ended.

    Attributes:
        game_id: unique among all plays; names the seats to engines.
        place: seed of the run, group index and number of the play within its group.
    """

    game: Game
    state: State
    players: Sequence[Player]
    game_id: str
    place: tuple[int, int, int]

    def __post_init__(self) -> None:
        session = self.game.start(self.state)
        places = (Place.at(self.game, session, seat, self.game_id, self.place) for seat in range(self.game.num_players))
        self.play = Play(session, [player.sit(place) for player, place in zip(self.players, places, strict=True)])

    def record(self, policy: PolicyRecord) -> PlayRecord:
        """The ended play as one line of a games file."""
        seed, group, number = self.place
        seats, outcome = self.play.seats, self.play.session.outcome()
        trajectories = [trajectory for seat in seats if (trajectory := seat.finish()) is not None]
        usages = [seat.usage for seat in seats if isinstance(seat, ChatSeat) and seat.usage is not None]
        return PlayRecord(
            game_id=self.game_id,
            group_index=group,
            play=number,
            seed=seed,
            game=self.game.name,
            state=self.state.to_dict(),
            players=[player.name for player in self.players],
            turns=self.play.turns,
            trajectories=trajectories,
            outcome=OutcomeRecord.of(outcome),
            policy=policy,
            prompt_tokens=sum(seat.prompt_tokens for seat in seats),
            cached_tokens=sum(seat.cached_tokens for seat in seats),
            partner=sum(usages, PartnerUsage()) if usages else None,
        )


def _missing(job: GenerateJob, done: Container[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for group in range(job.first_state, job.first_state + job.num_groups):
        for play in range(job.plays_per_state):
            if (group, play) not in done:
                yield group, play
