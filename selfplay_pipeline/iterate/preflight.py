"""Checks and the plan of a run of `iterate`, before anything starts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from selfplay_pipeline.config.schema import MEMBERS, SELF, Config, EngineConfig
from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.core.command_line import LARGEST
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import resolve_device
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.server_keys import SERVER_KEY, key_from_environment
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.pairing import check_names
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.games.base import MONITOR
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.episode_wrappers import OTHER_PLAY_KEY, check_swap
from selfplay_pipeline.generate.records import CHAT, POLICY
from selfplay_pipeline.generate.seats import check_seat
from selfplay_pipeline.generate.stage import check_seats, check_trainable
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.partners import (
    MEMBER,
    at_once,
    everyone_named,
    other_players,
    partners_in_words,
    seats_of,
    trained_seats,
)
from selfplay_pipeline.iterate.schedule import source_of, stages_of
from selfplay_pipeline.train.memory_check import check_fits
from selfplay_pipeline.train.offline import (
    SET_BY_ITERATIONS,
    check_training,
    check_verls_keys,
)
from selfplay_pipeline.train.offline_stage import training_of
from selfplay_pipeline.train.verl_overrides import check_not_set_by


def check_alone(config: Config) -> None:
    """Raises UserError if other members of a population are partners, since `iterate` trains one policy."""
    options = config.iterate
    named = [("iterate.partner", options.partner), *(("iterate.partners", one.player) for one in options.partners)]
    for key, name in named:
        if name == MEMBERS or MEMBER.fullmatch(name):
            raise UserError(
                f"{key}: {name} stands for members of a population, which `selfplay iterate --members` trains; for a "
                "folder of this name write ./ before it"
            )


def check_run(config: Config) -> None:
    """Raises UserError unless all players exist and this machine can play and train."""
    if config.seed + config.iterate.num_iterations > LARGEST:
        raise UserError(f"seed: {config.seed}: the last iteration's seed would be too large; give a smaller one")
    check_partner(config)
    check_trainable(config)
    if config.reward.changes:
        TrainedReward(config.reward)
    check_ahead(config, shares=shares_gpu(config))
    check_seats(config, str(config.model), everyone_named(config), at_once=at_once(config))
    check_training(config.train, resolve_device(config.device))
    check_not_set_by(SET_BY_ITERATIONS, config.train.overrides)
    check_verls_keys(training_of(config, Path("iter_1/train.parquet"), Path("iter_1"), shares_gpu=shares_gpu(config)))
    check_fits(
        config.train,
        resolve_device(config.device),
        str(config.model),
        context=config.engine.context_length,
        shares_gpu=shares_gpu(config),
    )
    if config.iterate.other_play:
        make_game(config.game).need("renamed", OTHER_PLAY_KEY, "leave it out")
    if config.evaluate.swap_messages:
        check_swap(make_game(config.game), sample_held_out(config, 2, MONITOR).states)


def check_partner(config: Config) -> None:
    """Raises UserError if the partner does not exist, or leaves the policy no seat."""
    check_seat(make_game(config.game), config.iterate.seat, "iterate.seat")
    if config.iterate.seat and config.iterate.partner == SELF:
        raise UserError("iterate.seat: in self-play the policy holds all seats; name a partner with --partner")
    check_names(config, other_players(config))


def shares_gpu(config: Config) -> bool:
    """Whether a launched server and the trainer stay on the same GPU and so must release its memory to each other.

    Servers and trainers that are launched here use GPUs from the first one on.
    """
    on_gpu = resolve_device(config.device) == "cuda"
    return on_gpu and config.iterate.keep_processes and not config.engine.server_url


def check_ahead(config: Config, *, shares: bool) -> None:
    """Raises UserError if training and playing at the same time is wanted of servers and a trainer that share GPUs."""
    if config.iterate.ahead and shares:
        raise UserError(
            f"iterate.ahead {config.iterate.ahead}: the server and the trainer are on the same GPUs, and only one of "
            "them has memory there at a time; give engine.server_url a server on other GPUs, or leave out iterate.ahead"
        )


async def attached_share(config: Config) -> bool:
    """Whether attached servers share GPUs with the trainer, as servers that can release memory do.

    Raises:
        UserError: A server does not answer, or one that shares GPUs could not get its weights again.
    """
    if resolve_device(config.device) != "cuda" or not config.engine.server_url:
        return False
    sharing = await sharing_servers(config.engine)
    if sharing and not Path(str(config.model)).is_dir():
        raise UserError(
            f"{config.model}: {sharing[0]} releases its weights while training (--enable-memory-saver) and can load "
            "only a folder again; give --model with a folder that the server sees"
        )
    for url in config.engine.server_url:
        used = "shares GPUs with the trainer, and releases its memory" if url in sharing else "keeps its memory"
        logger.info(f"{url} {used} while training")
    return bool(sharing)


async def sharing_servers(config: EngineConfig) -> list[str]:
    """Returns the addresses of the attached servers that can release their GPU memory, and so may share GPUs.

    Raises:
        UserError: A server does not answer, or needs another key.
    """
    async with SGLangEngine(config.server_url, key=key_from_environment(SERVER_KEY), attempts=1) as engine:
        try:
            await engine.find_ranks()
        except EngineError as error:
            raise UserError(f"engine.server_url: {error}; is an SGLang server running there?") from None
        return [client.url for client in engine.clients if client.saves_memory]


def check_begun_together(members: Sequence[tuple[Config, Path]]) -> None:
    """Checks that each run may begin or continue, and still has every checkpoint that others played with.

    Raises:
        UserError: A run was made with another configuration, or has lost files since.
    """
    runs = [RunDirectory(run_dir) for _, run_dir in members]
    for run, (config, _) in zip(runs, members, strict=True):
        run.check(config)
    for run in runs:
        for other, (config, _) in zip(runs, members, strict=True):
            played = [number for number, stages in other.state.iterations.items() if "generate" in stages]
            needed = max((source_of(config.iterate, number, "generate") for number in played), default=0)
            lost = next((number for number in range(1, needed + 1) if run.state.trained(number) is None), None)
            if lost is not None or (other.state.iterations and not run.manifest.exists()):
                told = f"its iteration {lost}, which {other.path.name} played with, is"
                raise UserError(
                    f"{run.path}: {told if lost else 'its files are'} gone since; put the folder back as it was, or "
                    "give another --output"
                )


def plan_iterate(config: Config, run_dir: Path) -> list[str]:
    """Returns lines that describe the work of `iterate` in a run folder; writes nothing.

    Raises:
        UserError: The run would be rejected.
    """
    check_alone(config)
    return plan_run(config, run_dir)


def plan_run(config: Config, run_dir: Path) -> list[str]:
    """Returns lines that describe the work in the run folder of a run or of a population's member.

    Raises:
        UserError: The run would be rejected.
    """
    run = RunDirectory(run_dir)
    run.check(config)
    check_run(config)

    def progress_of(number: int) -> str:
        stages = stages_of(config.iterate, number)
        done = [stage for stage in stages if run.state.get(number, stage) is not None]
        left = [stage for stage in stages if stage not in done]
        parts = [f"{', '.join(names)} {word}" for names, word in ((done, "done"), (left, "left")) if names]
        return "; ".join(parts)

    ahead = "; each iteration is played while the one before is trained" if config.iterate.ahead else ""
    lines = [f"in each iteration {plan_generate(config, run_dir / 'iter_N')}{ahead}"]
    numbers = range(config.iterate.num_iterations + 1)
    for words, group in groupby(numbers, progress_of):
        alike = list(group)
        which = f"iteration {alike[0]}" if len(alike) == 1 else f"iterations {alike[0]} to {alike[-1]}"
        lines += [f"{which}: {words}"] if words else []
    return lines


def plan_generate(config: Config, output: Path) -> str:
    """Returns one line that describes how the training episodes of an iteration would be played."""
    seats, partners = seats_of(config), partners_in_words(config.iterate.partners)
    groups = config.generate.num_groups
    episodes = groups * config.generate.episodes_per_state
    who = f"{config.model} plays" if set(seats) == {POLICY} else f"{config.model}: {' and '.join(seats)} play"
    who += f" with {partners}:" * bool(partners)
    rows = round(episodes * trained_seats(config))
    partner = f"; {CHAT} is {config.partner.model} at {config.partner.endpoint}" if CHAT in seats else ""
    return (
        f"{who} {episodes} episodes ({groups} states × {config.generate.episodes_per_state} episodes, "
        f"{make_game(config.game).describe()}) with {config.engine.kind} to {output}: "
        f"{'about ' * bool(partners)}{rows} rows at most{partner}"
    )
