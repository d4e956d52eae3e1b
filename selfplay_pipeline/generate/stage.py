"""`selfplay generate`: plays the episodes that a configuration describes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import PLAYED, deciding, portable
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.games.base import TRAIN, State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_player import partner_arguments
from selfplay_pipeline.generate.records import CHAT, POLICY, PolicyRecord, SeatRecord
from selfplay_pipeline.generate.run import GenerateJob, run_generate
from selfplay_pipeline.generate.seats import (
    check_seats,
    checkpoints_of,
    seat_players,
    seats_named,
    self_play,
    weights_of,
)
from selfplay_pipeline.generate.servers import Servers
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.generate.summary import Summary


def make_job(
    config: Config, output: Path, checkpoint: str, iteration: int, first_state: int, seats: Sequence[str] = ()
) -> GenerateJob:
    """Returns the job for training episodes, with all settings that decide them.

    Args:
        config: The configuration.
        output: The JSONL file.
        checkpoint: Checkpoint of the policy; its files must exist, since they are hashed.
        iteration: Number of the iteration.
        first_state: Number of the first game state.
        seats: Name of the player of each seat; by default, the policy holds all.
    """
    seats = seats or self_play(config)
    weights = weights_of(config, checkpoint) if POLICY in seats else ""
    policy = policy_record(config, checkpoint, weights, iteration=iteration)
    arguments = {
        **record_of(config, "generate", policy, seats_named(config, seats, policy)),
        "first_state": first_state,
        "num_groups": num_groups(config),
        **{f"player{seat}": name for seat, name in enumerate(seats)},
    }
    return GenerateJob(
        output=output,
        seed=config.seed,
        first_state=first_state,
        num_groups=num_groups(config),
        episodes_per_state=config.generate.episodes_per_state,
        max_concurrency=config.generate.max_concurrency,
        max_failures=config.generate.max_failures,
        policy=policy,
        arguments=portable(arguments, output),
    )


def record_of(config: Config, command: str, policy: PolicyRecord, seats: Sequence[SeatRecord]) -> dict[str, Any]:
    """Returns all settings of the configuration and of the seats that determine a command's episodes.

    The keys are the names in the stored arguments.
    """
    decided = {PLAYED.get(key, key): value for key, value in deciding(config, command).items()}
    sampled = {f"policy.{key}": value for key, value in policy.model_dump().items()}
    others = [seat.policy.weights if seat.kind == "checkpoint" and seat.policy else "" for seat in seats]
    weights = {f"weights.{number}": hashed for number, hashed in enumerate(others)}
    return decided | sampled | weights | partner_arguments(config, [seat.name for seat in seats])


def policy_record(
    config: Config, checkpoint: str, weights: str, *, iteration: int = 0, greedy: bool = False
) -> PolicyRecord:
    """Returns the record of a checkpoint and its sampling parameters."""
    return PolicyRecord(
        checkpoint=checkpoint,
        weights=weights,
        iteration=iteration,
        engine=config.engine.kind,
        temperature=0.0 if greedy else config.generate.temperature,
        max_new_tokens=config.generate.max_new_tokens,
        thinking=config.generate.thinking,
    )


def num_groups(config: Config) -> int:
    """Returns the number of game states for `num_episodes` episodes, rounded up."""
    return -(-config.generate.num_episodes // config.generate.episodes_per_state)


def plan_generate(config: Config, output: Path, seats: Sequence[str]) -> str:
    """Returns one line that describes what `generate` would do."""
    groups = num_groups(config)
    episodes = groups * config.generate.episodes_per_state
    model = f"{config.model}: " if POLICY in seats else ""
    who = f"{config.model} plays" if set(seats) == {POLICY} else f"{model}{' and '.join(seats)} play"
    partner = f"; {CHAT} is {config.partner.model} at {config.partner.endpoint}" if CHAT in seats else ""
    return (
        f"{who} {episodes} episodes ({groups} states × {config.generate.episodes_per_state} episodes, "
        f"{make_game(config.game).describe()}) with {config.engine.kind} to {output}: "
        f"{seats.count(POLICY) * episodes} rows at most{partner}"
    )


def check_generate(config: Config, output: Path, first_state: int, seats: Sequence[str]) -> None:
    """Raises UserError unless `generate` can run; writes nothing."""
    check_folder(output.parent, "generate")
    check_seats(config, str(config.model), seats)
    if output.exists() or EpisodeStore(output, {}).arguments_path.exists():
        make_job(config, output, str(config.model), 0, first_state, seats).store.check()


def check_trainable(config: Config) -> None:
    """Raises UserError unless the configured episodes are usable for training."""
    if config.generate.episodes_per_state < 2 and config.train.imitated != 0:
        raise UserError(
            "generate.episodes_per_state (--episodes-per-state): an episode alone has nothing to be compared with, so "
            "that nothing is learned from a group of one episode; play each state at least twice"
        )
    if config.generate.temperature == 0:
        raise UserError(
            "generate.temperature (--temperature): greedy episodes cannot be trained on; sample with a temperature "
            "above 0"
        )


async def generate_episodes(
    config: Config,
    output: Path,
    *,
    checkpoint: str | None = None,
    iteration: int = 0,
    first_state: int = 0,
    seats: Sequence[str] = (),
    servers: Servers | None = None,
) -> Summary:
    """Play the episodes that are missing from `output`, and return the figures of the whole file.

    Args:
        config: The configuration.
        output: The JSONL file.
        checkpoint: Checkpoint of the policy; by default, the configured model.
        iteration: Number of the iteration.
        first_state: Number of the first game state.
        seats: Player of each seat: `policy`, a scripted player, `chat`, or another checkpoint; by default, the policy
            holds all.
        servers: Running servers; by default, the call starts and stops its own.
    """
    checkpoint, seats = checkpoint or str(config.model), seats or self_play(config)
    check_folder(output.parent, "generate")
    game = make_game(config.game)

    def state(number: int) -> State:
        return game.sample_state(state_rng(config.seed, number, TRAIN))

    async with AsyncExitStack() as stack:
        if servers is None:
            check_seats(config, checkpoint, seats)
            at_once = len(checkpoints_of(config, seats, checkpoint))
            servers = await stack.enter_async_context(Servers(config, output.parent, at_once=at_once))
        job = make_job(config, output, checkpoint, iteration, first_state, seats)
        job.store.check()  # before the slow start of a server
        by_name = await seat_players(config, seats_named(config, seats, job.policy), servers)
        players = [by_name[name] for name in seats]
        return await run_generate(job, game, state, lambda number: players)
