"""Options of online training. `OnlineOptions` is the `online:` section of the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from selfplay_pipeline.config.training import PolicyTraining, TrainOptions
from selfplay_pipeline.core.sections import FREE, Section
from selfplay_pipeline.games.registry import GameConfig

TOKENS_PER_PASS = {"cuda": 16384, "cpu": 4096}
"""Default number of tokens in one forward and backward pass of online training, by device."""


class OnlineOptions(Section):
    """Amount of play and training in online training. Sampling is in the section `generate`, the loss in `train`."""

    steps: Annotated[int, Field(ge=1)] = 50
    """Number of training steps; each plays new episodes with the newest weights and makes one update."""
    states_per_step: Annotated[int, Field(ge=1)] = 8
    """Number of states per step, each with `generate.episodes_per_state` episodes; an episode gives one row per player.
    """
    held_out_states: Annotated[int, Field(ge=1)] = 100
    """Number of states in a validation, each played once.

    These are the monitor states of `evaluate.state_seed`, on which `iterate` also compares its iterations. Neither
    training nor `selfplay evaluate` plays them.
    """
    validate_every: Annotated[int, Field(ge=0)] = 0
    """Number of steps between validations; 0 validates only before the first step and after the last."""


def tokens_per_pass(train: TrainOptions, device: str, context: int) -> int:
    """Returns the tokens of one forward and backward pass of online training on one device.

    Args:
        train: The options of training.
        device: The device to train on, `cpu` or `cuda`.
        context: The context length; a pass holds at least this many tokens, since verl never splits a row.
    """
    return max(train.max_tokens_per_pass or TOKENS_PER_PASS[device], context)


class OnlineConfig(PolicyTraining):
    """Options of one online training run: those of training and of play."""

    online: OnlineOptions = OnlineOptions()
    game: GameConfig
    """The game that the states must belong to."""
    games: Annotated[Path, FREE]
    """Folder with train.parquet and test.parquet of `selfplay games`."""
    episodes_per_state: Annotated[int, Field(ge=2)]
    temperature: Annotated[float, Field(gt=0)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    thinking: bool = False
    """Value of `enable_thinking` for chat templates that have this switch."""
    context_length: Annotated[int, Field(ge=2)]
    """Longest trajectory in tokens."""
    max_failures: Annotated[int, Field(ge=0), FREE] = 16
    """Number of episodes of a step that may be lost to the engine; the run stops if more are lost."""
    tensor_parallel: Annotated[int, Field(ge=1)] = 1
    """Number of GPUs that share one copy of the model while playing."""
