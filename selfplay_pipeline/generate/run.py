"""Many plays at once: every play advances as soon as its own reply arrives."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.files import write_json
from selfplay_pipeline.games.types import Game, State, Status
from selfplay_pipeline.generate.chat import ChatSeat
from selfplay_pipeline.generate.play import Play
from selfplay_pipeline.generate.players import Place, Player
from selfplay_pipeline.generate.records import OutcomeRecord, PartnerUsage, PlayRecord, PolicyRecord
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


async def run_generate(
    job: GenerateJob,
    game: Game,
    states: Callable[[int], State],
    players: Callable[[int], Sequence[Player]],
    on_play: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Play what is missing from `job.output` and return the figures of the whole file.

    Args:
        states: the state of each number.
        players: who sits where, by the number of the play within its group.
        on_play: called with the figures so far, after each play.

    Raises:
        EngineError: more than `max_failures` plays, or all, were lost to the engine or the partner; the file keeps
            all plays.
        NoTurnsError: every play ended at the context length, or before anyone spoke; the file keeps all plays.
        UserError: the file belongs to another process or to other arguments.
    """
    summary = Summary()
    with job.store.opened() as (existing, append):
        done = Counter[tuple[int, int]]()
        for record in existing:
            done[record.group_index, record.play] += 1
            summary.add(record)
        summary.start()
        failures_before = summary.failures
        missing = _missing(job, done)
        on_play(summary)
        started = time.monotonic()

        @lru_cache(maxsize=2 * job.max_concurrency)
        def state_of(group: int) -> State:
            return states(group)

        lost_to: EngineError | None = None

        async def worker() -> None:
            nonlocal lost_to
            for group, number in missing:
                place = (job.seed, group, number)
                sitting = Sitting(game, state_of(group), players(number), job.game_id(group, number), place)
                await sitting.play.run()
                record = sitting.record(job.policy)
                append(record)
                summary.add(record)
                summary.seconds = time.monotonic() - started
                on_play(summary)
                if summary.failures - failures_before > job.max_failures:
                    raise EngineError(
                        f"{summary.failures - failures_before} plays were lost to the engine or the partner, "
                        f"the last to: {sitting.play.lost_to}; "
                        f"what was played is kept in {job.output}; the same command continues with the rest"
                    )
                lost_to = sitting.play.lost_to or lost_to

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(job.max_concurrency, job.num_plays)):
                tasks.create_task(worker())
        summary.seconds = time.monotonic() - started
    if summary.plays == summary.failures:
        raise EngineError(
            f"all {summary.plays} plays were lost to the engine or the partner"
            f"{f', the last to: {lost_to}' if lost_to else ''}; mend that and give another --output"
        )
    _check_played(job, summary)
    write_json(job.summary_path, summary.to_dict())
    return summary


def _check_played(job: GenerateJob, summary: Summary) -> None:
    played = summary.plays - summary.failures
    if summary.turns and summary.statuses[Status.CONTEXT_LENGTH.value] < played:
        return
    statuses = ", ".join(f"{name} {count}" for name, count in sorted(summary.statuses.items()))
    raise NoTurnsError(
        f"{job.output}: no play was played to its end ({statuses}; {summary.turns / played:.1f} turns a play), because "
        f"one more turn of {job.policy.max_new_tokens} tokens might not fit into the context of "
        f"{job.policy.checkpoint}; use smaller boards (game.size), shorter prompts (game.prompts: compact), shorter "
        "turns (generate.max_new_tokens) or a model with a longer context, and another --output; these games are kept "
        "for reading"
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
        places = (Place.at(session, seat, self.game_id, self.place) for seat in range(self.game.num_players))
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
            outcome=OutcomeRecord(
                status=Status(outcome.status),
                score=outcome.score,
                best=outcome.best,
                normalized_reward=outcome.normalized_reward,
                proposal=list(outcome.proposal) if outcome.proposal else None,
                num_turns=outcome.num_turns,
                num_messages=outcome.num_messages,
                num_proposals=outcome.num_proposals,
                num_illegal=outcome.num_illegal,
            ),
            policy=policy,
            prompt_tokens=sum(seat.prompt_tokens for seat in seats),
            cached_tokens=sum(seat.cached_tokens for seat in seats),
            partner=sum(usages, PartnerUsage()) if usages else None,
        )


def _missing(job: GenerateJob, done: Counter[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for group in range(job.first_state, job.first_state + job.num_groups):
        for play in range(job.plays_per_state):
            if (group, play) not in done:
                yield group, play
