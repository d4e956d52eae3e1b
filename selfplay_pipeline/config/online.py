"""Options of one online training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from selfplay_pipeline.config.schema import GenerateConfig, OnlineOptions
from selfplay_pipeline.config.training import PolicyTraining, TrainOptions
from selfplay_pipeline.core.sections import FREE
from selfplay_pipeline.games.registry import GameConfig

TOKENS_PER_PASS = {"cuda": 16384, "cpu": 4096}
"""Default number of tokens in one forward and backward pass of online training, by device."""


def tokens_per_pass(train: TrainOptions, device: str, context: int) -> int:
    """Returns the tokens of one forward and backward pass of online training on one device.

    Args:
        train: The options of training.
        device: The device to train on, `cpu` or `cuda`.
        context: The context length; a pass holds at least this many tokens, since verl never splits a row.
    """
    return max(train.max_tokens_per_pass or TOKENS_PER_PASS[device], context)


class OnlineConfig(PolicyTraining):
    """Options of one online training run: all options of training, and the options of play."""

    online: OnlineOptions = OnlineOptions()
    generate: GenerateConfig
    game: GameConfig
    """The game that the states must belong to."""
    games: Annotated[Path, FREE]
    """Folder with train.parquet and test.parquet of `selfplay games`."""
    context_length: Annotated[int, Field(ge=2)]
    """Longest trajectory in tokens."""
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Number of GPUs that share one copy of the model while playing."""
