"""Stage `selfplay train`: builds and runs the training of a configuration."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.parquet import sampler_of
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.gpus import resolve_device
from selfplay_pipeline.train.memory_check import offload_here
from selfplay_pipeline.train.offline import TrainResult, run_train
from selfplay_pipeline.train.process import Trainer


def training_of(
    config: Config,
    data: Path,
    output: Path,
    *,
    checkpoint: str | None = None,
    sampled_by: str | None = None,
    seed: int | None = None,
    initial_trainer_state: Path | None = None,
    base_model: str | None = None,
    reference_model: str | None = None,
    any_model: bool = False,
    plays_meanwhile: bool = False,
    shares_gpu: bool = False,
    rate_share: float = 1.0,
    saves_state: bool = True,
) -> TrainConfig:
    """Returns the settings of a training of `checkpoint` on one parquet file.

    Args:
        config: The configuration of the run.
        data: The parquet file to train on.
        output: The output folder of the training.
        checkpoint: The model to train; by default, the configured one.
        sampled_by: The model that must have sampled the rows; by default, `checkpoint`.
        seed: Seed of the order of the groups and of the trainer; by default, the configured one.
        initial_trainer_state: Folder trainer_state/ of an earlier iteration to continue from.
        base_model: Base model of a LoRA adapter; by default, `checkpoint`.
        reference_model: Reference policy of the KL loss; by default, `checkpoint`.
        any_model: Whether to train a model that did not sample the rows.
        plays_meanwhile: Whether episodes are played during the training.
        shares_gpu: Whether a server needs the GPU's memory before and after the training.
        rate_share: Factor of the configured learning rate.
        saves_state: Whether the save at the end holds the trainer's state.
    """
    checkpoint = checkpoint or str(config.model)
    here = {
        "learning_rate": config.train.learning_rate * rate_share,
        "offload": offload_here(
            config.train,
            resolve_device(config.device),
            checkpoint,
            config.engine.context_length,
            shares_gpu=shares_gpu,
        ),
    }
    return TrainConfig(
        **config.train.model_dump() | here,
        model=checkpoint,
        data=data,
        sampled_by=sampled_by,
        output=output,
        seed=config.seed if seed is None else seed,
        device=config.device,
        initial_trainer_state=initial_trainer_state,
        base_model=base_model,
        reference_model=reference_model,
        any_model=any_model,
        plays_meanwhile=plays_meanwhile,
        shares_gpu=shares_gpu,
        saves_state=saves_state,
    )


def model_of(data: Path) -> str:
    """Returns the checkpoint that sampled the rows of a file, as the recorded path or hub name.

    Raises:
        UserError: The file is unusable or does not name its model, or the model does not exist at that path.
    """
    found = sampler_of(data)
    if found is None:
        raise UserError(
            f"{data}: does not say which model sampled its rows; play again, or give --model and --any-model"
        )
    try:
        check_checkpoint(found.checkpoint)
    except UserError as error:
        raise UserError(f"{error}; it sampled the rows of {data}: give --model with the model's new path") from None
    return found.checkpoint


async def train_policy(job: TrainConfig, trainer: Trainer | None = None, command: str = "train") -> TrainResult:
    """Run a training, or continue an interrupted one; returns its result.

    Args:
        job: The training.
        trainer: verl's process, passed to `run_train`.
        command: The command that the output folder belongs to.
    """
    check_folder(job.output, command)
    return await run_train(job, trainer)
