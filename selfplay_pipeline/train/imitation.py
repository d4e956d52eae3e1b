"""`selfplay imitate`: converts episodes of any players to rows and trains a model on them with a supervised loss."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import CONTENTS, check_same, deciding
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import Schedule, TrainConfig
from selfplay_pipeline.convert.imitation import HELD_OUT, TRAIN, ImitationRows, Source, make_rows
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import locked, write_json
from selfplay_pipeline.core.folders import IMITATED, check_folder, own_folder
from selfplay_pipeline.core.gpus import resolve_device
from selfplay_pipeline.core.model_sizes import model_context_length, sizes_of
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.small_files import check_regular, read_object
from selfplay_pipeline.core.stopping import computing
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.preflight import check_arguments
from selfplay_pipeline.generate.read_records import read_lines
from selfplay_pipeline.generate.stage import policy_record
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.memory_check import offload_here
from selfplay_pipeline.train.offline import TrainResult, check_options
from selfplay_pipeline.train.offline_stage import train_policy
from selfplay_pipeline.train.process import Trainer

HIGHEST_RATE = 3e-3
"""Largest default learning rate of `imitate`: the best of those tried on the untrained tiny model."""
WARM_UP = 0.05
"""Share of the steps over which the learning rate rises linearly to its full value."""


async def imitate_episodes(
    config: Config,
    sources: Sequence[Source],
    output: Path,
    trainer: Trainer | None = None,
    *,
    schedule: Schedule = "cosine",
) -> TrainResult:
    """Convert episodes to rows, train on them, and return the result of the training.

    Rows that an earlier call has made are kept, and an interrupted training continues.

    Args:
        config: The configuration.
        sources: Files of episodes.
        output: Folder for the rows and for the files that `train` writes.
        trainer: verl's process, as for `run_train`.
        schedule: Learning-rate schedule.

    Raises:
        UserError: A model, file or option is unusable, or the folder holds another training.
        TrainError: verl failed.
    """
    with computing():
        _check(config, sources, output)
        decided = _begun(config, sources, output)
        rows = _rows_of(config, sources) if decided is not None else None
    with locked(output / ".imitate.lock", f"training folder {output}"):
        with computing():
            own_folder(output, "imitate")
            if rows is not None and _begun(config, sources, output) is not None:
                rows.write(output)
                write_json(output / IMITATED, decided)
        if config.imitate.learning_rate is None:
            weights = trained_weights(config)
            logger.info(f"learning rate {usual_rate(weights):.1e}, by the number of trained weights ({weights:,})")
        return await train_policy(training_of(config, output, schedule), trainer, "imitate")


def _check(config: Config, sources: Sequence[Source], output: Path) -> None:
    check_folder(output, "imitate")
    if config.generate.thinking:
        raise UserError(
            "generate.thinking: episodes hold no thoughts, so that imitation would unlearn them; leave it out"
        )
    check_checkpoint(str(config.model))
    check_options(training_of(config, output))
    for source in sources:
        check_regular(source.path, "`selfplay generate` and `selfplay game humans` write episodes")


def _begun(config: Config, sources: Sequence[Source], output: Path) -> dict[str, Any] | None:
    """Returns the settings and hashes that determine the rows; None if the rows exist already.

    Raises:
        UserError: The folder holds rows of another imitation, or two files hold the same episodes.
    """
    model, digests = str(config.model), [_digest(source.path) for source in sources]
    by_content: dict[str, Path] = {}
    for (path, *_), digest in zip(sources, digests, strict=True):
        if (other := by_content.setdefault(digest, path)) is not path:
            raise UserError(f"{other} and {path} hold the same episodes; give one of them, as FILE=2 to count it twice")
    now = deciding(config.imitate, "imitate", "imitate.") | deciding(config.game, "imitate", "game.")
    now |= {
        "model": model,
        "weights": content_hash(model),
        "seed": config.seed,
        "train.best_of_group": config.train.best_of_group,
        "games": [source.to_json() for source in sources],
    }
    now |= deciding(config.engine, "imitate", "engine.")
    now |= {"generate.template_args": config.generate.template_args, "generate.date": config.generate.date}
    now |= {"generate.history": config.generate.history}
    now |= {f"{CONTENTS}{path.resolve()}": digest for (path, *_), digest in zip(sources, digests, strict=True)}
    record = output / IMITATED
    if record.exists():
        check_same(output, read_object(record, "selfplay imitate"), now)
        return None
    return now


def _rows_of(config: Config, sources: Sequence[Source]) -> ImitationRows:
    """Returns the rows to imitate of the episodes in all files."""
    model = str(config.model)
    policy = policy_record(config, model, "")
    chat = ChatTokenizer.load(model, **policy.template)
    chat.check_belongs_to(model)
    check_arguments(policy, [chat])
    rows = make_rows(
        sources,
        make_game(config.game),
        chat,
        config.imitate,
        history=policy.history,
        best_of_group=config.train.best_of_group or 0,
        context_length=model_context_length(model, config.engine.context_length),
        seed=config.seed,
    )
    logger.info(rows.counts.to_text())
    return rows


def _digest(path: Path) -> str:
    """Returns a hash of the lines of a file of episodes."""
    digest = hashlib.sha256()
    for _, line in read_lines(path):
        digest.update(line)
    return digest.hexdigest()[:16]


def trained_weights(config: Config) -> int:
    """Returns the number of weights that `imitate` trains: all weights of the model, or of its LoRA adapter."""
    try:
        sizes = sizes_of(str(config.model))
    except UserError as error:
        raise UserError(
            f"{error}; or give imitate.learning_rate (--learning-rate), whose default depends on the size"
        ) from None
    return sizes.adapter * config.train.lora_rank or sizes.parameters


def usual_rate(weights: int) -> float:
    """Returns the default learning rate for a number of trained weights, rounded to two digits."""
    return float(f"{min(HIGHEST_RATE, weights**-0.5):.1e}")


def training_of(config: Config, output: Path, schedule: Schedule = "cosine") -> TrainConfig:
    """Returns the configuration of the training on the rows in `output`."""
    model, choice = str(config.model), config.imitate
    held_out = output / HELD_OUT
    options = config.train.model_dump() | {
        "method": "filtered-bc",
        "best_of_group": 0,  # the imitated episodes were chosen when the rows were made
        "train_batch_size": choice.train_batch_size,
        "mini_batches": 1,
        "learning_rate": choice.learning_rate or usual_rate(trained_weights(config)),
        "offload": offload_here(config.train, resolve_device(config.device), model, config.engine.context_length),
    }
    return TrainConfig(
        **options,
        model=model,
        data=output / TRAIN,
        output=output,
        seed=config.seed,
        device=config.device,
        held_out=held_out if held_out.exists() else None,
        schedule=schedule,
        warm_up=WARM_UP,
        any_model=True,  # no model has sampled these rows
    )
