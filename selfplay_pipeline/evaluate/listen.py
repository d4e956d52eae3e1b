"""`selfplay listen`: measures the effect of altered messages on a player's decisions.

Each state is played greedily. If a seat makes a decision right after another seat's message, the decision is repeated
after an altered message. The game provides the altered message and the decision of a player that follows it. The rest
of the episode stays the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.evaluate.pairing import Pairing, check_begun, play_pairing
from selfplay_pipeline.evaluate.run import EvaluationJob, check_job
from selfplay_pipeline.games.base import LISTENING, MESSAGE, Game, State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import ContextFull, Player, Reply, SeatView
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord
from selfplay_pipeline.generate.seats import Backends, Servers, given_or_own, is_checkpoint, seat_players, seats_named
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

LISTENING_FILE = "listening.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Replay(_Model):
    """One repeated decision.

    Attributes:
        state: Number of the state.
        kind: Kind of alteration, one of the game's `alterations`.
        message: The altered message.
        said: Decision after the original message.
        expected: Decision of a player that follows the altered message.
        decided: Decision of the player after the altered message; None if the player made no decision.
    """

    state: int
    seat: int
    kind: str
    message: str
    said: Any
    expected: Any
    decided: Any

    @property
    def moved(self) -> bool:
        return self.decided is not None and self.decided != self.said

    @property
    def followed(self) -> bool:
        return self.moved and self.decided == self.expected


class Heard(_Model):
    """Effect of one kind of altered message on a player's decisions: shares over the tested states."""

    tested: int
    follows: Interval
    """Share of the decisions that became the best decision given the altered message."""
    moves: Interval
    """Share of the decisions that changed in any way."""


class Listening(_Model):
    """Content of `listening.json`; `lost` is the number of missing episodes that the engine lost."""

    player: str
    states: str
    num_states: int
    mute: bool
    lost: int = 0
    kinds: dict[str, Heard]
    replays: list[Replay]

    def totals(self, kind: str) -> Totals:
        """Returns `totals_of` the replays of one kind of alteration."""
        return totals_of([replay for replay in self.replays if replay.kind == kind])


async def run_listen(config: Config, job: EvaluationJob, servers: Servers | None = None) -> Listening:
    """Play the missing episodes greedily, repeat the decisions, write `listening.json`, and return its content.

    Args:
        config: The configuration.
        job: The player, the states and the output folder; the player plays with itself.
        servers: Running servers; by default, the call starts and stops its own.

    Raises:
        UserError: The player is unusable, the game has no listening test, or the folder holds other data.
        EngineError: Too many episodes, or a decision, failed because of the engine; the same command continues.
    """
    check_folder(job.output, "listen")
    if servers is None:
        check_listen(config, job)
    game, pairing = make_game(config.game), _pairing(config, job)
    game.need("alter", "listen")
    async with given_or_own(servers, Backends.of(config), job.output) as running:
        own_folder(job.output, "listen")
        lost = await play_pairing(config, pairing, running)
        name = POLICY if is_checkpoint(game, job.player) else job.player
        seats = seats_named(game, config.engine, [name], pairing.job(config).policy)
        player = (await seat_players(game, seats, running))[name]
        found = await _replays(game, player, job, list(read_episodes(pairing.file)), config.generate.max_concurrency)
    listening = Listening(
        player=job.player,
        states=job.states.name,
        num_states=len(job.states),
        mute=config.game.mute,
        lost=lost,
        kinds={kind: heard([replay for replay in found if replay.kind == kind]) for kind in game.alterations},
        replays=found,
    )
    write_text(job.output / LISTENING_FILE, listening.model_dump_json(indent=2) + "\n")
    return listening


def check_listen(config: Config, job: EvaluationJob) -> None:
    """Raises UserError unless the game has the test and the player can play these states on this machine."""
    make_game(config.game).need("alter", "listen")
    check_job(config, job, "listen")
    check_begun(config, _pairing(config, job))


def _pairing(config: Config, job: EvaluationJob) -> Pairing:
    return replace(job.pairing(config, "greedy"), file=job.output / "heard.jsonl")


def heard(replays: Sequence[Replay]) -> Heard:
    """Returns the shares of changed decisions in replays of one kind of alteration, with intervals over states."""
    none = Interval(value=None, low=None, high=None)
    shares = totals_of(replays).intervals() if replays else {"follows": none, "moves": none}
    return Heard(tested=len(replays), **shares)


def totals_of(replays: Sequence[Replay]) -> Totals:
    """Returns the numbers of decisions that followed the message (`follows`) and that changed (`moves`), by state."""
    ones = np.ones(len(replays))
    return Totals.of(
        {
            "follows": (np.array([replay.followed for replay in replays], dtype=float), ones),
            "moves": (np.array([replay.moved for replay in replays], dtype=float), ones),
        }
    )


async def _replays(
    game: Game, player: Player, job: EvaluationJob, records: Sequence[EpisodeRecord], at_once: int
) -> list[Replay]:
    """Returns the replays of all decisions that can be repeated, in the order of the states."""
    free = asyncio.Semaphore(at_once)

    async def replay(record: EpisodeRecord, kind: str) -> Replay | None:
        async with free:
            with suppress(ContextFull):
                return await _replay(game, player, job.states.states[record.group_index], record, kind)
        return None

    waiting = [replay(record, kind) for record in records for kind in game.alterations]
    found = []
    with progress("deciding after altered messages") as report:
        for done, one in enumerate(asyncio.as_completed(waiting), start=1):
            found.append(await one)
            report(done, len(waiting))
    return sorted((one for one in found if one is not None), key=lambda one: (one.state, one.kind))


async def _replay(game: Game, player: Player, state: State, record: EpisodeRecord, kind: str) -> Replay | None:
    """Repeat the first decision after another seat's message; returns None if it cannot be repeated."""
    turns, number = record.turns, record.group_index
    at = next((at for at, turn in enumerate(turns) if turn.proposal is not None), 0)
    if not at or turns[at - 1].action != MESSAGE or turns[at - 1].seat == (seat := turns[at].seat):
        return None
    altered = game.alter(state, turns[:at], kind, state_rng(0, number, LISTENING))
    if altered is None:
        return None
    session = game.start(state)
    holder = player.sit(SeatView.at(game, session, seat, record.episode_id, (record.seed, number, record.episode)))
    for turn in turns[: at - 1]:
        reply = await holder.act() if turn.seat == seat else Reply(turn.text, turn.finish_reason == "length", "")
        if reply.text != turn.text:
            return None  # own turns are sampled again, and an engine may round differently in another batch
        holder.observe(session.step(turn.seat, reply.text, cut=reply.cut).observations[seat])
    holder.observe(session.step(turns[at - 1].seat, altered.text).observations[seat])
    reply = await holder.act()
    return Replay(
        state=number,
        seat=seat,
        kind=kind,
        message=altered.text,
        said=turns[at].proposal,
        expected=altered.decision,
        decided=session.step(seat, reply.text, cut=reply.cut).decision,
    )
