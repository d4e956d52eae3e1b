"""`selfplay evaluate`: plays fixed states with any partner, and reports every figure with its interval."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from selfplay_pipeline.config.identity import portable
from selfplay_pipeline.config.schema import SELF, Config
from selfplay_pipeline.convert.reward import TrainedReward, own_reward
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model, write_text
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.shipped import as_listed, shipped
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
from selfplay_pipeline.evaluate.pairing import (
    Pairing,
    check_begun,
    check_meeting,
    check_names,
    comparable,
    play_pairings,
)
from selfplay_pipeline.evaluate.silence import above_silence
from selfplay_pipeline.evaluate.states import NUM_STATES, StateSet, references, sample_held_out
from selfplay_pipeline.evaluate.worth_of_words import Rise, SwappedRewards, Words, rise_of, worth_of_words
from selfplay_pipeline.games.base import Game, Status
from selfplay_pipeline.games.figures import Measures
from selfplay_pipeline.games.measured import Measured, heard_of
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode_wrappers import Swap, check_swap
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.seats import (
    Backends,
    Servers,
    check_seat,
    checkpoints_among,
    given_or_own,
    is_checkpoint,
)
from selfplay_pipeline.generate.stage import check_models
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast
from selfplay_pipeline.metrics.figures import measure, measure_reward

Mode = Literal["sampled", "greedy", "scripted"]


@dataclass(frozen=True)
class EvaluationJob:
    """Description of an evaluation.

    Attributes:
        player: The evaluated player: a checkpoint, a scripted player, or `chat`.
        states: States to play.
        output: Folder for `sampled.jsonl`, `greedy.jsonl` and `evaluation.json`.
        partner: Player of the other seats: `self`, another checkpoint, a scripted player, or `chat`.
        episodes: Number of sampled episodes of each state and seating.
        greedy: Whether a checkpoint plays greedily.
        seat: Seat of the player in all episodes with another player; None for each seat in turn.
        swaps: Rules by which heard messages are replaced in further episodes, `swapped` first; empty for none.
        sampled: Whether a checkpoint plays sampled.
        in_turn: Whether the player takes each seat in turn although the partner is the same player, so that the
            evaluation is comparable to those of other players with this partner.
        silence: Whether rewards are compared with silence on the same states, which takes up to minutes of one core.
    """

    player: str
    states: StateSet
    output: Path
    partner: str = SELF
    episodes: int = 2
    greedy: bool = True
    seat: int | None = None
    swaps: Sequence[Swap] = ()
    sampled: bool = True
    in_turn: bool = False
    silence: bool = False

    def modes(self, config: Config) -> tuple[Mode, ...]:
        if not is_checkpoint(make_game(config.game), self.player):
            return ("scripted",)
        wanted: dict[Mode, bool] = {"sampled": self.sampled, "greedy": self.greedy}
        return tuple(mode for mode, asked in wanted.items() if asked)

    @property
    def self_play(self) -> bool:
        return self.partner == SELF or (self.partner == self.player and not self.in_turn)

    @property
    def seating(self) -> Seating:
        if self.seat is not None and self.partner != SELF:
            return Seating.ONE
        return Seating.BOTH if self.self_play else Seating.EITHER

    @property
    def players(self) -> set[str]:
        """Names of the players: one in self-play, else two."""
        return {self.player} if self.self_play else {self.player, self.partner}

    def tally(
        self,
        config: Config,
        measures: Callable[[Measured], Measures] = measure,
        reward: TrainedReward | None = None,
    ) -> Tally:
        """Returns an empty tally of the player's seats."""
        return Tally(make_game(config.game), len(self.states), self.seating, measures, self.seat or 0, reward)

    def file(self, mode: Mode, swap: Swap | None = None) -> Path:
        return self.output / (f"{mode}_{swap}.jsonl" if swap else f"{mode}.jsonl")

    def pairing(self, config: Config, mode: Mode, swap: Swap | None = None) -> Pairing:
        """Returns the pairing of one mode; in mode `scripted`, a checkpoint as partner is sampled."""
        return Pairing(
            first=self.player,
            second=self.player if self.self_play else self.partner,
            states=self.states,
            file=self.file(mode, swap),
            episodes=1 if mode == "greedy" else self.episodes,
            greedy=mode == "greedy",
            both_seatings=self.seating is Seating.EITHER,
            seat=self.seat or 0,
            swap=swap,
        )


def job_of(
    config: Config,
    player: str,
    output: Path,
    *,
    partner: str = SELF,
    states: StateSet | None = None,
    num_states: int = NUM_STATES,
    episodes: int = 2,
    seat: int | None = None,
) -> EvaluationJob:
    """Returns an evaluation of a player, by default on `num_states` held-out states.

    `evaluate.swap_messages` adds episodes with swapped messages.

    Raises:
        UserError: A player is unknown, or `seat` is given without a partner or does not exist.
    """
    player, partner = shipped(player), shipped(partner)
    if seat is not None and partner == SELF:
        raise UserError("--seat: in self-play the player holds all seats; name a --partner")
    if partner != SELF:
        check_meeting(config, "--partner")
    check_seat(make_game(config.game), seat or 0, "--seat")
    check_names(config, {player, partner} - {SELF})  # before the states are sampled, which may be slow
    return EvaluationJob(
        player=player,
        partner=partner,
        states=states or sample_held_out(config, num_states),
        episodes=episodes,
        output=output,
        seat=seat,
        swaps=swaps_of(make_game(config.game)) if config.evaluate.swap_messages else (),
        silence=True,
    )


class ModeReport(BaseModel):
    """Figures of one mode."""

    model_config = ConfigDict(extra="forbid")

    episodes: int
    statuses: dict[str, int]
    figures: dict[str, Interval]
    words: Words | None = Field(default=None, exclude_if=lambda words: words is None)
    """Worth of words; None if no messages were swapped."""
    above_silence: Interval | None = Field(default=None, exclude_if=lambda interval: interval is None)
    """Reward minus the expected reward of silence, paired by state; None where silence bounds no play, or if it was not
    computed on these states."""

    @property
    def lost(self) -> int:
        """Number of missing episodes that failed because of the engine or a chat model."""
        return self.statuses.get(Status.ENGINE_FAILURE.value, 0) + (self.words.lost if self.words else 0)


class Evaluation(BaseModel):
    """Content of `evaluation.json`."""

    model_config = ConfigDict(extra="forbid")

    player: str
    partner: str
    seating: Seating = Seating.BOTH
    seat: int | None = None
    """Seat of the player in all episodes, with `Seating.ONE`."""
    states: str
    num_states: int
    temperature: float
    mute: bool
    modes: dict[Mode, ModeReport]
    references: dict[str, Interval]
    """Mean normalised rewards of other players, by name, for comparison.

    `random`, `own_view`, `optimum` and, if known, `human` are measured on the evaluated states. Strategies without
    words (`silence`, `pass`, `counter`; see `games/silence.py`) are measured on other states.
    """


async def run_evaluate(config: Config, job: EvaluationJob, servers: Servers | None = None) -> Evaluation:
    """Play the missing episodes, write `evaluation.json`, and return its content.

    Raises:
        UserError: A checkpoint or its tokenizer is unusable, or the folder holds another evaluation.
        EngineError: Too many episodes failed because of the engine.
    """
    check_folder(job.output, "evaluate")
    if servers is None:
        check_job(config, job)
    kinds = list(product(job.modes(config), (None, *job.swaps)))
    pairings = [job.pairing(config, mode, swap) for mode, swap in kinds]
    at_once = len(checkpoints_among(make_game(config.game), job.players))
    async with given_or_own(servers, Backends.of(config), job.output, at_once) as running:
        own_folder(job.output, "evaluate")
        lost = dict(zip(kinds, await play_pairings(config, pairings, running), strict=True))
    words, reports = _words_before(job.output), dict[Mode, ModeReport]()
    tallies = {mode: tally_of(config, job, mode) for mode in job.modes(config)}
    totals = {mode: tally.totals() for mode, tally in tallies.items()}
    above = above_silence(make_game(config.game), job.states.states, totals) if job.silence else {}
    for mode, tally in tallies.items():
        tally.statuses.update({Status.ENGINE_FAILURE.value: lost[mode, None]} if lost[mode, None] else {})
        said = words.get(mode)
        if job.swaps:
            said = _worth(config, job, mode, sum(lost[mode, swap] for swap in job.swaps))
        reports[mode] = ModeReport(
            episodes=tally.statuses.total(),
            statuses=dict(tally.statuses),
            figures=totals[mode].intervals(),
            words=said,
            above_silence=above.get(mode),
        )
    evaluation = Evaluation(
        player=job.player,
        partner=job.partner,
        seating=job.seating,
        seat=job.seat if job.seating is Seating.ONE else None,
        states=job.states.name,
        num_states=len(job.states),
        temperature=config.generate.temperature,
        mute=config.game.mute,
        modes=reports,
        references=references(make_game(config.game), job.states),
    )
    stored = evaluation.model_copy(update=portable({"player": job.player, "partner": job.partner}, job.output))
    write_text(job.output / "evaluation.json", stored.model_dump_json(indent=2) + "\n")
    return evaluation


def _words_before(folder: Path) -> dict[Mode, Words]:
    """Returns the worth of words that an earlier call of the same evaluation measured, if it did."""
    with suppress(UserError):
        before = read_model(folder / "evaluation.json", Evaluation, "selfplay evaluate")
        return {mode: report.words for mode, report in before.modes.items() if report.words is not None}
    return {}


def _worth(config: Config, job: EvaluationJob, mode: Mode, lost: int) -> Words:
    """Returns the worth of words, from the episodes with swapped messages.

    Args:
        lost: Number of these episodes that were lost.
    """
    game, swapped = make_game(config.game), dict[Swap, SwappedRewards]()
    for swap in job.swaps:
        tally, count = job.tally(config, measure_reward), Counter[bool]()
        for record in read_episodes(job.file(mode, swap)):
            tally.add([record])
            count.update(bool(text) for turn in record.turns for text in heard_of(turn).values())
        swapped[swap] = SwappedRewards(tally.totals(), count.total(), count[False])
    whole = game.shared_reward or job.seating is Seating.BOTH
    return worth_of_words(game, rewards_of(config, job, mode), swapped, lost, whole=whole)


def check_job(config: Config, job: EvaluationJob, command: str = "evaluate") -> None:
    """Raises UserError unless the players can play the states on this machine and the folder is usable.

    Args:
        config: The configuration.
        job: The evaluation.
        command: Command that writes into the folder.
    """
    check_folder(job.output, command)
    own_reward(config.reward)
    for mode, swap in product(job.modes(config), (None, *job.swaps)):
        check_begun(config, job.pairing(config, mode, swap))
    game = make_game(config.game)
    if job.swaps:
        check_swap(game, job.states.states)
    check_names(config, job.players)
    check_models(config, checkpoints_among(game, job.players), job.states.states)


def swaps_of(game: Game) -> tuple[Swap, ...]:
    """Returns the rules by which messages of a game can be replaced."""
    return ("swapped", "named") if game.has("keep_named") else ("swapped",)


def default_folder(player: str, partner: str, states: Path | None, config: Config, *, seat: int | None = None) -> Path:
    """Returns a folder below `data/evaluations/`, named after the players, the states and the options."""
    parts = [as_listed(player), *([f"with {as_listed(partner)}"] if partner != SELF else [])]
    parts += [str(states)] if states else []
    if seat is not None:
        parts.append(f"seat {seat}")
    if config.game.mute:
        parts.append("mute")
    return Path("data/evaluations") / "_".join(map(_plain, parts))


def _plain(name: str) -> str:
    """Returns a name as part of a file name: its letters and digits in any script, and `-` for all others."""
    plain = re.sub(r"(?:[^\w.]|_)+", "-", name).strip("-")
    return plain if plain.strip(".") else _plain(Path(name).resolve().name or "root")


def compare_with(config: Config, job: EvaluationJob, earlier: Path) -> dict[Mode, dict[str, Interval]]:
    """Returns the figures of this evaluation minus those of an earlier one, paired by game state.

    Raises:
        UserError: The folder has no evaluation, or one with other states, partner, rules or sampling.
    """
    check_comparable(config, job, earlier)
    result = {}
    for mode in job.modes(config):
        before = totals_of(_as_played(config, earlier, mode), replace(job, output=earlier), mode)
        now = totals_of(config, job, mode)
        if now.episodes.tolist() != before.episodes.tolist():
            logger.warning(
                f"{job.output} and {earlier} do not have {mode} episodes of the same states, since some were lost; the "
                "differences leave out states that one of them lacks"
            )
        result[mode] = contrast([(1, now), (-1, before)])
    return result


def _as_played(config: Config, folder: Path, mode: Mode) -> Config:
    """Returns the configuration with messages muted as in an earlier evaluation, on which the losses depend."""
    stored = read_object(folder / f"{mode}.args.json", "selfplay evaluate", "game.mute")
    return config.model_copy(update={"game": config.game.model_copy(update={"mute": stored["game.mute"]})})


def rises_over(config: Config, job: EvaluationJob, earlier: Path) -> dict[Mode, Rise]:
    """Returns the rises over an earlier evaluation of the same states, partner, rules and sampling."""
    pair = (job, replace(job, output=earlier))
    return {
        mode: rise_of(
            [rewards_of(config, one, mode) for one in pair],
            [rewards_of(config, one, mode, "swapped") for one in pair if _swapped_in(pair, mode)],
        )
        for mode in job.modes(config)
    }


def _swapped_in(pair: Sequence[EvaluationJob], mode: Mode) -> bool:
    """Whether episodes with swapped messages are asked for, and all of the evaluations have them."""
    return bool(pair[0].swaps) and all(job.file(mode, "swapped").exists() for job in pair)


def check_comparable(config: Config, job: EvaluationJob, earlier: Path) -> None:
    """Raises UserError unless a folder holds an evaluation of the same states, partner, rules and sampling."""
    for mode in job.modes(config):
        path = earlier / f"{mode}.args.json"
        if not (earlier / "evaluation.json").exists() or not path.exists():
            raise UserError(
                f"{earlier}: no finished evaluation there with {mode} episodes; `selfplay evaluate` writes one"
            )
        before = read_object(path, "selfplay evaluate", "first", "second")
        if not comparable(job.pairing(config, mode).job(config).arguments, before):
            raise UserError(
                f"{earlier}: not comparable: its states, episodes, partner, rules or sampling differ "
                f"(compare {path.name} of both folders)"
            )


def tally_of(config: Config, job: EvaluationJob, mode: Mode, swap: Swap | None = None) -> Tally:
    """Returns the figures of the played episodes of one mode, by state."""
    return job.tally(config, reward=own_reward(config.reward)).add(read_episodes(job.file(mode, swap)))


def totals_of(config: Config, job: EvaluationJob, mode: Mode, swap: Swap | None = None) -> Totals:
    """Returns the figures of one mode as sums by state, for paired comparisons.

    Args:
        swap: Rule by which heard messages were replaced; None for the original messages.
    """
    return tally_of(config, job, mode, swap).totals()


def rewards_of(config: Config, job: EvaluationJob, mode: Mode, swap: Swap | None = None) -> Totals:
    """Returns the rewards of one mode as sums by state, with the arguments of `totals_of`."""
    return job.tally(config, measure_reward).add(read_episodes(job.file(mode, swap))).totals()
