"""`selfplay generate`: plays the episodes that a configuration describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import deciding, portable
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder, own_folder
from selfplay_pipeline.games.base import TRAIN, Game, State, state_rng
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.chat_player import partner_arguments
from selfplay_pipeline.generate.episode import AS_IT_IS, Player
from selfplay_pipeline.generate.episode_wrappers import Renamed
from selfplay_pipeline.generate.preflight import check_play, training_states
from selfplay_pipeline.generate.records import CHAT, POLICY, PolicyRecord, SeatRecord
from selfplay_pipeline.generate.run import GenerateJob, Phase, PlayTask, run_tasks
from selfplay_pipeline.generate.seats import (
    Backends,
    Servers,
    check_players,
    checkpoints_among,
    checkpoints_of,
    given_or_own,
    seat_players,
    seats_named,
    self_play,
    weights_of,
)
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.generate.token_streams import MAX_COUNT


def make_job(
    config: Config,
    output: Path,
    checkpoint: str,
    iteration: int,
    first_state: int,
    seats: Sequence[str] = (),
    groups: Sequence[Sequence[str]] = (),
) -> GenerateJob:
    """Returns the job for training episodes, with all settings that decide them.

    Args:
        config: The configuration.
        output: The JSONL file.
        checkpoint: Checkpoint of the policy; its files must exist, since they are hashed.
        iteration: Number of the iteration.
        first_state: Number of the first game state.
        seats: Name of the player of each seat; by default, the policy holds all.
        groups: Name of the player of each seat of each group, in place of `seats`.

    Raises:
        UserError: The numbers of the last states are too large for the rows.
    """
    game, count = make_game(config.game), config.generate.num_groups
    if first_state + count > MAX_COUNT:
        raise UserError(
            f"--first-state {first_state}: with {count} states, their numbers end above {MAX_COUNT - 1}; "
            "give a smaller one"
        )
    seats = seats or self_play(game)
    if len(set(map(tuple, groups))) == 1:
        seats, groups = groups[0], ()
    names = list(dict.fromkeys(name for group in groups for name in group)) or seats
    weights = weights_of(config.engine, checkpoint) if POLICY in names else ""
    policy = policy_record(config, checkpoint, weights, iteration=iteration)
    arguments = {
        **record_of(config, "generate", policy, seats_named(game, config.engine, names, policy)),
        "first_state": first_state,
        "generate.num_episodes": count * config.generate.episodes_per_state,
        **{f"player{number}": name for number, name in enumerate(names)},
        **(
            {"groups": " ".join("-".join(str(names.index(name)) for name in group) for group in groups)}
            if groups
            else {}
        ),
    }
    return GenerateJob(
        output=output,
        seed=config.seed,
        first_state=first_state,
        num_groups=count,
        episodes_per_state=config.generate.episodes_per_state,
        max_concurrency=config.generate.max_concurrency,
        policy=policy,
        arguments=portable(arguments, output),
    )


def record_of(config: Config, command: str, policy: PolicyRecord, seats: Sequence[SeatRecord]) -> dict[str, Any]:
    """Returns all settings of the configuration and of the seats that determine a command's episodes."""
    sampled = {
        "model": policy.checkpoint,
        "generate.temperature": policy.temperature,  # 0 if the command plays greedily, whatever the configuration says
        "policy.weights": policy.weights,
        "policy.iteration": policy.iteration,
    }
    others = [seat.policy.weights if seat.kind == "checkpoint" and seat.policy else "" for seat in seats]
    weights = {f"weights.{number}": hashed for number, hashed in enumerate(others)}
    chat = partner_arguments(config.partner, make_game(config.game), [seat.name for seat in seats])
    return deciding(config, command) | sampled | weights | chat


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
        template_args=config.generate.template_args,
        date=config.generate.date,
        history=config.generate.history,
    )


def check_trainable(config: Config) -> None:
    """Raises UserError unless the configured episodes are usable for training."""
    if config.generate.episodes_per_state < 2:
        raise UserError(
            "generate.episodes_per_state (--episodes-per-state): an episode alone has nothing to be compared with, so "
            "that `convert` leaves out a group of one episode; play each state at least twice"
        )
    if config.generate.temperature == 0:
        raise UserError("generate.temperature: greedy episodes cannot be trained on; sample with a temperature above 0")


def check_seats(config: Config, checkpoint: str, seats: Iterable[str], *, at_once: int | None = None) -> None:
    """Raises UserError unless all players exist and can play the configured game on this machine.

    The chat model is not asked, but its key and its prompt must be given.

    Args:
        config: The configuration.
        checkpoint: Checkpoint of the player `policy`.
        seats: Name of the player of each seat.
        at_once: Largest number of checkpoints that play at the same time; by default, all of them.
    """
    game, seats = make_game(config.game), list(seats)
    check_players(game, seats)
    if CHAT in seats:
        config.partner.key()
        partner_arguments(config.partner, game, seats)
    models = checkpoints_of(game, seats, checkpoint)
    for model in models:
        check_checkpoint(model)
    check_models(config, models, training_states(game, config.seed), at_once=at_once)


def check_models(config: Config, models: Iterable[str], states: Iterable[State], *, at_once: int | None = None) -> None:
    """Raises UserError unless checkpoints can play states of the configured game on this machine; see `check_play`."""
    policy = policy_record(config, str(config.model), "")
    check_play(make_game(config.game), Backends.of(config), policy, models, states, at_once=at_once)


async def generate_episodes(
    config: Config,
    output: Path,
    *,
    checkpoint: str | None = None,
    iteration: int = 0,
    first_state: int = 0,
    seats: Sequence[str] = (),
    groups: Sequence[Sequence[str]] = (),
    servers: Servers | None = None,
    other_play: bool = False,
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
        groups: Player of each seat of each group, in place of `seats`. Groups with the same checkpoint beside the
            policy are played together, those with another one after them.
        servers: Running servers; by default, the call starts and stops its own.
        other_play: Whether each seat sees its own random renaming of the state's names.
    """
    game, backends = make_game(config.game), Backends.of(config)
    checkpoint, seats = checkpoint or str(config.model), seats or self_play(game)
    tables = groups or [seats] * config.generate.num_groups
    check_folder(output.parent, "generate")

    def state(number: int) -> State:
        return game.sample_state(state_rng(config.seed, number, TRAIN))

    if servers is None:
        check_seats(config, checkpoint, seats)
    at_once = len(checkpoints_of(game, seats, checkpoint))
    async with given_or_own(servers, backends, output.parent, at_once) as running:
        job = make_job(config, output, checkpoint, iteration, first_state, seats, groups)
        if other_play:
            job = replace(job, arguments={**job.arguments, "other_play": True})
        job.store.check()  # before the slow start of a server
        own_folder(output.parent, "generate")
        by_name: dict[str, Player] = {}

        async def begin(names: Sequence[str]) -> None:
            named = seats_named(game, backends.engine, names, job.policy)
            by_name.update(await seat_players(game, named, running))

        def players(group: int, episode: int) -> Sequence[Player]:
            return [by_name[name] for name in tables[group - first_state]]

        phases = [
            Phase({first_state + group for group in together}, partial(begin, names))
            for names, together in playable_together(game, tables)
        ]
        if len(phases) == 1:  # before a file is written, which nobody needs if the players cannot play
            await phases.pop().begin()
        wrapper = Renamed() if other_play else AS_IT_IS
        (summary,) = await run_tasks([PlayTask(job, game, state, players, wrapper)], phases)
        return summary


def playable_together(game: Game, groups: Sequence[Sequence[str]]) -> list[tuple[list[str], list[int]]]:
    """Returns the groups that are played at the same time: the names of their players, and their positions.

    Each has at most one combination of checkpoints beside the policy; groups without such a checkpoint join the first.
    """
    beside = [tuple(sorted({*checkpoints_among(game, group)})) for group in groups]
    first = next(filter(None, beside), ())
    together: dict[tuple[str, ...], list[int]] = {first: []}
    for number, checkpoints in enumerate(beside):
        together.setdefault(checkpoints or first, []).append(number)
    return [
        (list(dict.fromkeys(name for number in numbers for name in groups[number])), numbers)
        for numbers in together.values()
    ]
