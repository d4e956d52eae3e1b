"""Stages `selfplay game states` and `selfplay train-online` for a configuration."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import check_is_folder
from selfplay_pipeline.core.folders import TRAINING_RECORD, check_folder
from selfplay_pipeline.core.gpus import resolve_device
from selfplay_pipeline.core.model_sizes import model_context_length
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.engines.compiler import check_compiler
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.preflight import check_arguments, check_context, check_not_shared, training_states
from selfplay_pipeline.generate.stage import check_trainable, policy_record
from selfplay_pipeline.train.memory_check import check_fits, offload_here
from selfplay_pipeline.train.offline import check_training
from selfplay_pipeline.train.online import OnlineResult, check_begun, check_steps, run_online
from selfplay_pipeline.train.online_overrides import online_tokens_of_pass
from selfplay_pipeline.train.online_states import write_games


def online_games(config: Config, out: Path, num_train: int, num_test: int, *, per_seat: bool = False) -> None:
    """Write train.parquet and test.parquet (monitor states) with the states of an online training."""
    check_folder(out, "game states")
    write_games(
        out,
        config.game,
        num_train=num_train,
        num_test=num_test,
        seed=config.seed,
        test_seed=config.evaluate.state_seed,
        per_seat=per_seat,
    )


def check_online(config: Config) -> None:
    """Raises UserError unless the model, the GPUs and the context length suit online training.

    Raises:
        UserError: verl cannot train and play with the configured GPUs, or the context cannot hold a turn.
    """
    device = resolve_device(config.device)
    check_training(config.train, device)
    context = model_context_length(str(config.model), config.engine.context_length)
    check_fits(config.train, device, str(config.model), tokens=online_tokens_of_pass(config.train, device, context))
    shared, gpus = config.engine.tensor_parallel, config.train.gpus_per_node
    if device == "cpu":
        check_not_shared(shared)
    elif gpus % shared:
        raise UserError(
            f"engine.tensor_parallel {shared}: does not divide train.gpus_per_node {gpus}; change one of them"
        )
    else:
        check_compiler()
    copies = config.train.workers // shared
    wanted = config.engine.data_parallel
    if wanted not in (1, copies):
        raise UserError(
            f"engine.data_parallel {wanted}: train-online serves {copies} copies of the model, one on each {shared} of "
            f"its {config.train.workers} training processes; leave it out"
        )
    game, model = make_game(config.game), str(config.model)
    policy, states = policy_record(config, model, ""), training_states(game, config.seed)
    check_arguments(policy, [check_context(game, config.engine, policy, model, states)])


def online_job(config: Config, output: Path, games: Path | None = None) -> OnlineConfig:
    """Returns the online training of a configuration, after all checks that do not need its states.

    Raises:
        UserError: The training is not possible with this model, on this machine or in this folder.
    """
    model = str(config.model)
    if games is not None:
        check_is_folder(games)
    check_folder(output, "train-online")
    check_checkpoint(model)
    check_trainable(config)
    check_online(config)
    device, context = resolve_device(config.device), model_context_length(model, config.engine.context_length)
    tokens = online_tokens_of_pass(config.train, device, context)
    return OnlineConfig(
        **config.train.model_dump() | {"offload": offload_here(config.train, device, model, context, tokens=tokens)},
        model=model,
        output=output,
        seed=config.seed,
        device=config.device,
        online=config.online,
        generate=config.generate,
        evaluate=config.evaluate,
        game=config.game,
        games=games or output / "games",
        context_length=context,
        tensor_parallel=config.engine.tensor_parallel,
    )


def plan_online(config: Config, output: Path, games: Path | None = None) -> str:
    """Returns a one-line description of the work that `train-online` would do; writes nothing.

    Raises:
        UserError: The training would be rejected.
    """
    job, online = online_job(config, output, games), config.online
    if samples := _samples_states(job, games):
        check_steps(job, len(make_game(config.game).roles))
    else:
        check_begun(job)
    states = "new states" if samples else f"the states of {job.games}"
    return (
        f"{config.model} plays itself and is trained in {online.steps} steps of {online.states_per_step} states × "
        f"{job.generate.episodes_per_state} episodes on {states} ({make_game(config.game).describe()}), to {output}"
    )


def _samples_states(job: OnlineConfig, games: Path | None) -> bool:
    return games is None and not (job.output / TRAINING_RECORD).exists()


async def train_online(config: Config, output: Path, games: Path | None = None) -> OnlineResult:
    """Train on episodes that the policy plays during training, or continue such a training; returns the result.

    Args:
        config: The configuration.
        output: The output folder.
        games: Folder with the states to play. By default, new states are written to `output`, one for each state of
            each step, so that no state is played in two steps.
    """
    with computing():
        job = online_job(config, output, games)
        if _samples_states(job, games):
            check_steps(job, len(make_game(config.game).roles))
            num_train = config.online.steps * config.online.states_per_step
            online_games(config, job.games, num_train, config.evaluate.monitor_states)
    return await run_online(job)
