"""Options of one online training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from selfplay_pipeline.config.schema import EvaluateConfig, GenerateConfig, OnlineOptions
from selfplay_pipeline.config.training import PolicyTraining
from selfplay_pipeline.games.registry import GameConfig


class OnlineConfig(PolicyTraining):
    """Options of one online training run: all options of training, and the options of play."""

    online: OnlineOptions = OnlineOptions()
    generate: GenerateConfig
    evaluate: EvaluateConfig = EvaluateConfig()
    game: GameConfig
    """The game that the states must belong to."""
    games: Path
    """Folder with train.parquet and test.parquet of `selfplay game states`."""
    context_length: Annotated[int, Field(ge=2)]
    """Longest trajectory in tokens."""
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Number of GPUs that share one copy of the model while playing."""
