"""Results of training in an iteration, and the best one; others: `held_out`, `generate.summary`, `convert.result`.

Unknown fields, from a later version, are kept; missing fields, from an earlier version, get their default.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.metrics.bootstrap import Interval


class StageResult(BaseModel):
    """Stored result of a stage in `state.json`, for tables, charts and the next stage."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Trained(StageResult):
    """Result of a training.

    Attributes:
        checkpoint: Path of the new checkpoint, relative to the run folder; or of the previous checkpoint if `carried`.
            The initial model keeps the name that the user gave.
        carried: Whether the previous checkpoint is carried forward, because no group had a signal.
        weights: Content hash of the checkpoint.
        rows: Number of rows trained on in each epoch; with `method: filtered-bc` only those of the best episodes.
        updates: Number of optimizer steps; one step of verl may have several.
        own_tokens: Number of sampled tokens trained on, counted once per epoch.
        log_prob_gap: Mean |trainer - engine| of the log-probs at the first step, in nats. With a staleness above 0 it
            holds the movement of the policy as well.
        staleness: Number of trainings between the weights that sampled the rows and those that were trained on them;
            None unless playing is ahead of training.
    """

    checkpoint: str
    carried: bool
    weights: str = ""
    steps: int
    groups: int | None = None
    groups_without_signal: int | None = None
    rows: int | None = None
    updates: int | None = None
    own_tokens: int | None = None
    seconds_in_steps: float = 0.0
    log_prob_gap: float | None = None
    staleness: int | None = Field(None, exclude_if=lambda staleness: staleness is None)


class KnownInterval(Interval):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def known(interval: Interval) -> KnownInterval:
    """Returns the same interval, typed as having a value and both ends.

    Raises:
        EngineError: The figure has no interval, because it is of fewer than two states.
    """
    if interval.low is None:
        raise EngineError(
            "fewer than two held-out states are left for an interval, since the others' episodes were lost; the same "
            "command plays them"
        )
    return KnownInterval(**interval.model_dump())


class Best(StageResult):
    """Content of `best.json`: the iteration with the highest held-out reward."""

    iteration: int
    checkpoint: str
    held_out_reward: KnownInterval
    held_out_greedy_reward: KnownInterval
