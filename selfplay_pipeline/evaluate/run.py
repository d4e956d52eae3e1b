"""`selfplay evaluate`: play fixed states, with any partner, and report every figure with its interval."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.config import Config
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.evaluate.figures import Tally
from selfplay_pipeline.evaluate.states import StateSet, references
from selfplay_pipeline.files import read_json, write_text
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.scripted import SCRIPTED
from selfplay_pipeline.generate.players import POLICY, Player
from selfplay_pipeline.generate.records import read_games
from selfplay_pipeline.generate.run import GenerateJob
from selfplay_pipeline.servers import Servers
from selfplay_pipeline.stages import check_players, is_checkpoint, play, policy_record, seat_players

Mode = Literal["sampled", "greedy", "scripted"]
SELF = "self"


@dataclass(frozen=True)
class EvaluationJob:
    """What to evaluate.

    Attributes:
        player: a checkpoint, or the name of a scripted partner.
        opponent: who sits opposite: `self`, another checkpoint or a scripted partner; both seatings are played.
        plays: sampled plays of each state (and of each seating).
        output: gets `sampled.jsonl`, `greedy.jsonl` and `evaluation.json`.
    """

    player: str
    states: StateSet
    output: Path
    opponent: str = SELF
    plays: int = 2
    greedy: bool = True

    @property
    def modes(self) -> tuple[Mode, ...]:
        if self.player in SCRIPTED:
            return ("scripted",)
        return ("sampled", "greedy") if self.greedy else ("sampled",)

    @property
    def self_play(self) -> bool:
        return self.opponent in (SELF, self.player)

    def plan(self) -> str:
        """What would be done, in one line."""
        seatings = 1 if self.self_play else 2
        plays = {mode: len(self.states) * seatings * (1 if mode == "greedy" else self.plays) for mode in self.modes}
        counts = ", ".join(f"{count} {mode} plays" for mode, count in plays.items())
        with_whom = "itself" if self.self_play else self.opponent
        return f"{self.player} with {with_whom} on {self.states.name}: {counts} to {self.output}"

    def file(self, mode: Mode) -> Path:
        return self.output / f"{mode}.jsonl"


class ModeReport(BaseModel):
    """Figures of one way to sample."""

    model_config = ConfigDict(extra="forbid")

    plays: int
    statuses: dict[str, int]
    figures: dict[str, Interval]


class Evaluation(BaseModel):
    """`evaluation.json`."""

    model_config = ConfigDict(extra="forbid")

    player: str
    opponent: str
    states: str
    num_states: int
    temperature: float
    mute: bool
    modes: dict[Mode, ModeReport]
    references: dict[str, Interval]
    """Mean normalised rewards on the same states: random, own_view, optimum and, where known, human."""


async def run_evaluate(config: Config, job: EvaluationJob, servers: Servers | None = None) -> Evaluation:
    """Play what is missing and write `evaluation.json`.

    Raises:
        UserError: a checkpoint or its tokenizer is unusable, or the folder holds another evaluation.
        EngineError: too many plays were lost to the engine.
    """
    if servers is None:
        check_players([job.player] if job.self_play else [job.player, job.opponent])
        two = not job.self_play and is_checkpoint(job.opponent)
        async with Servers(config.engine, job.output, two=two) as own:
            return await run_evaluate(config, job, own)
    reports: dict[Mode, ModeReport] = {}
    for mode in job.modes:
        seats = (job.player, job.player if job.self_play else job.opponent)
        plays = 1 if mode == "greedy" else job.plays
        temperature = config.generate.temperature if mode == "sampled" else 0.0
        await play_states(
            config, job.states, job.file(mode), seats, plays, temperature, servers, both_seatings=not job.self_play
        )
        tally = tally_of(config, job, mode)
        reports[mode] = ModeReport(
            plays=tally.statuses.total(), statuses=dict(tally.statuses), figures=tally.totals().intervals()
        )
    evaluation = Evaluation(
        player=job.player,
        opponent=job.opponent,
        states=job.states.name,
        num_states=len(job.states),
        temperature=config.generate.temperature,
        mute=config.game.mute,
        modes=reports,
        references=references(job.states),
    )
    write_text(job.output / "evaluation.json", evaluation.model_dump_json(indent=2) + "\n")
    return evaluation


def default_folder(player: str, opponent: str, states: Path | None, config: Config) -> Path:
    """`data/evaluations/` and what tells this evaluation from others."""
    parts = [player, *([f"with {opponent}"] if opponent != SELF else []), *([str(states)] if states else [])]
    if config.game.mute:
        parts.append("mute")
    return Path("data/evaluations") / "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in parts)


def compare_with(config: Config, job: EvaluationJob, earlier: Path) -> dict[Mode, dict[str, Interval]]:
    """This evaluation minus an earlier one, paired by game state.

    Raises:
        UserError: there is none, or it is of other states or with another opponent.
    """
    before = Evaluation.model_validate(read_json(earlier / "evaluation.json"))
    if (before.opponent == SELF) != job.self_play or before.num_states != len(job.states):
        raise UserError(f"{earlier}: an evaluation of {before.states} with {before.opponent}: not comparable with this")
    result = {}
    for mode in job.modes:
        arguments = [read_json(folder / f"{mode}.args.json")["states"] for folder in (job.output, earlier)]
        if arguments[0] != arguments[1]:
            raise UserError(f"{earlier}: an evaluation of other states ({before.states}): not comparable with this")
        after = totals_of(config, job, mode)
        result[mode] = contrast([(1, after), (-1, totals_of(config, replace(job, output=earlier), mode))])
    return result


def tally_of(config: Config, job: EvaluationJob, mode: Mode) -> Tally:
    """The figures of the plays in the folder, by state."""
    return Tally(make_game(config.game), len(job.states), job.self_play).add(read_games(job.file(mode)))


def totals_of(config: Config, job: EvaluationJob, mode: Mode) -> Totals:
    """The same as sums by state, for paired comparisons."""
    return tally_of(config, job, mode).totals()


async def play_states(
    config: Config,
    states: StateSet,
    file: Path,
    seats: tuple[str, str],
    plays: int,
    temperature: float,
    servers: Servers,
    *,
    both_seatings: bool = False,
) -> None:
    """Play each state `plays` times, or twice as often with the seats swapped in every other play.

    Args:
        seats: checkpoints or scripted partners; the first one's trajectories are recorded.
    """
    first, second = seats
    policy = policy_record(config, first if is_checkpoint(first) else "scripted", temperature)
    me = POLICY if is_checkpoint(first) else first
    other = me if second == first else second
    arguments = {
        "seats": list(seats),
        "states": states.fingerprint,
        "plays": plays,
        "both_seatings": both_seatings,
        "weights": [weights_of(name) for name in seats],
        "context_length": config.engine.context_length,
        **{f"policy.{key}": value for key, value in policy.model_dump().items()},
        **{f"game.{key}": value for key, value in config.game.model_dump().items()},
    }
    job = GenerateJob(
        output=file,
        seed=0,
        first_state=0,
        num_groups=len(states),
        plays_per_state=plays * (2 if both_seatings else 1),
        max_concurrency=config.generate.max_concurrency,
        max_failures=config.generate.max_failures,
        policy=policy,
        arguments=arguments,
    )
    by_name = await seat_players(config, {me, other}, policy, servers)
    seatings = [[by_name[me], by_name[other]], [by_name[other], by_name[me]]]

    def players(number: int) -> Sequence[Player]:
        return seatings[number % 2 if both_seatings else 0]

    await play(job, make_game(config.game), states.states.__getitem__, players)


def weights_of(name: str) -> list[list[Any]]:
    """Size and time of a checkpoint's weight files: plays of a checkpoint that was trained anew are not reused."""
    files = sorted(Path(name).glob("*.safetensors")) if Path(name).is_dir() else []
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]
