"""`selfplay listen`: does a player's plan follow what it hears?

Each state is played greedily. Where a seat decided right after another's message, the same seat decides once more,
after another message in its place, of which the game says what a listener would then decide. All else is as it was.
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
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.evaluate.pairing import play_pairing
from selfplay_pipeline.evaluate.run import EvaluationJob, check_job
from selfplay_pipeline.games.abilities import ListeningTest, ability
from selfplay_pipeline.games.base import LISTENING, MESSAGE, Game, State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode import ContextFull, Reply
from selfplay_pipeline.generate.players import Player, Seat
from selfplay_pipeline.generate.records import POLICY, EpisodeRecord, read_episodes
from selfplay_pipeline.generate.seats import is_checkpoint, seat_players, seats_named
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

LISTENING_FILE = "listening.json"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Replay(_Model):
    """One decision that was taken again.

    Attributes:
        state: number of the state.
        kind: how the message was altered, one of the game's `alterations`.
        said: the decision after the message as it was said.
        expected: that of a player that plans with the altered message.
        decided: that of the player after the altered message; None if it decided nothing.
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
    """Shares of decisions that altered messages of one kind changed, over the states that were tested."""

    tested: int
    follows: Interval
    """The decision became the one that is best on what its seat then knew."""
    moves: Interval
    """It became any other one."""


class Listening(_Model):
    """`listening.json`; `lost` are episodes that are missing, lost to the engine."""

    player: str
    states: str
    num_states: int
    mute: bool
    lost: int = 0
    kinds: dict[str, Heard]
    replays: list[Replay]

    def totals(self, kind: str) -> Totals:
        """Returns for each tested state how often the decisions of one kind followed and moved."""
        return totals_of([replay for replay in self.replays if replay.kind == kind])


async def run_listen(config: Config, job: EvaluationJob, servers: Servers | None = None) -> Listening:
    """Play what is missing greedily, take the decisions again, and write `listening.json`.

    Args:
        job: the player, its states and its folder; it plays with itself.

    Raises:
        UserError: the player is unusable, the game has no such test, or the folder holds something else.
        EngineError: too many episodes, or a decision, were lost to the engine; the same command continues.
    """
    check_folder(job.output, "listen")
    if servers is None:
        check_listen(config, job)
        async with Servers(config.engine, job.output) as own:
            return await run_listen(config, job, own)
    game, pairing = make_game(config.game), replace(job.pairing(config, "greedy"), file=job.output / "heard.jsonl")
    lost = await play_pairing(config, pairing, servers)
    name = POLICY if is_checkpoint(config, job.player) else job.player
    seats = seats_named(config, [name], pairing.task(config).policy)
    player = (await seat_players(config, seats, servers))[name]
    test = ability(game, ListeningTest, "listen")
    found = await _replays(game, player, job, list(read_episodes(pairing.file)), config.generate.max_concurrency)
    listening = Listening(
        player=job.player,
        states=job.states.name,
        num_states=len(job.states),
        mute=config.game.mute,
        lost=lost,
        kinds={kind: heard([replay for replay in found if replay.kind == kind]) for kind in test.alterations},
        replays=found,
    )
    write_text(job.output / LISTENING_FILE, listening.model_dump_json(indent=2) + "\n")
    return listening


def check_listen(config: Config, job: EvaluationJob) -> None:
    """Raises UserError unless the game has the test and the player can play these states on this machine."""
    ability(make_game(config.game), ListeningTest, "listen")
    check_job(config, job, "listen")


def heard(replays: Sequence[Replay]) -> Heard:
    """The shares of one kind, with intervals over states."""
    none = Interval(value=None, low=None, high=None)
    shares = totals_of(replays).intervals() if replays else {"follows": none, "moves": none}
    return Heard(tested=len(replays), **shares)


def totals_of(replays: Sequence[Replay]) -> Totals:
    """Replays that followed and that moved; each state has one replay of a kind at most."""
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
    """All decisions that can be taken again, in the order of the states."""
    free, test = asyncio.Semaphore(at_once), ability(game, ListeningTest, "listen")

    async def replay(record: EpisodeRecord, kind: str) -> Replay | None:
        async with free:
            with suppress(ContextFull):
                return await _replay(game, player, job.states.states[record.group_index], record, kind)
        return None

    waiting = [replay(record, kind) for record in records for kind in test.alterations]
    found = []
    with progress("deciding after altered messages") as report:
        for done, one in enumerate(asyncio.as_completed(waiting), start=1):
            found.append(await one)
            report(done, len(waiting))
    return sorted((one for one in found if one is not None), key=lambda one: (one.state, one.kind))


async def _replay(game: Game, player: Player, state: State, record: EpisodeRecord, kind: str) -> Replay | None:
    """The first decision that followed another seat's message, taken again; None where there is none to alter."""
    turns, number = record.turns, record.group_index
    at = next((at for at, turn in enumerate(turns) if turn.proposal is not None), 0)
    if not at or turns[at - 1].action != MESSAGE or turns[at - 1].seat == (seat := turns[at].seat):
        return None
    altered = ability(game, ListeningTest, "listen").alter(state, turns[:at], kind, state_rng(0, number, LISTENING))
    if altered is None:
        return None
    session = game.start(state)
    holder = player.sit(Seat.at(game, session, seat, record.episode_id, (record.seed, number, record.episode)))
    for turn in turns[: at - 1]:
        reply = await holder.act() if turn.seat == seat else Reply(turn.text, turn.finish_reason == "length", "")
        if reply.text != turn.text:
            return None  # its own turns are taken anew, and an engine may round otherwise in another batch
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
