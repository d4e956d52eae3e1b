"""Results of the stages of an iteration; `generate.summary` has that of playing, `convert.result` that of converting.

A field that later versions add is kept; one that an earlier version did not write has its default.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from selfplay_pipeline.metrics.bootstrap import Interval


class StageResult(BaseModel):
    """Result of a stage in `state.json`, for tables, charts and the next stage."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)


class Trained(StageResult):
    """Result of a training.

    Attributes:
        checkpoint: what it made, relative to the run folder; or the one before, `carried` forward where no group had a
            signal. The model that a run began with is named as it was given.
        weights: content hash of the checkpoint.
        rows: trained on in each epoch; with `method: filtered-bc` those of the best episodes alone.
        updates: optimizer steps; a step of verl's may have several.
        own_tokens: trained on, counted once an epoch.
        log_prob_gap: mean |trainer - engine| of the log-probs at the first step, in nats.
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


class KnownInterval(Interval):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def known(interval: Interval) -> KnownInterval:
    """An interval of a figure that every evaluation has.

    Raises:
        ValidationError: the figure was not estimated.
    """
    return KnownInterval(**interval.model_dump())


class Evaluated(StageResult):
    """Figures of a checkpoint on the held-out states of a run.

    Attributes:
        held_out_talk_score: of the sampled episodes; only where the silence line is known.
        held_out_greedy_talk_score: the same of the greedy ones.
        held_out_questions: questions an episode; only where the policy is trained with another player as its partner.
        held_out_parts: figures that are parts of one whole, such as where reward is lost, by their names.
    """

    checkpoint: str
    held_out_reward: KnownInterval
    held_out_greedy_reward: KnownInterval
    held_out_agreed: float | None = None
    held_out_illegal: float | None = None
    states_shared_with_training: int = 0
    held_out_talk_score: Interval | None = None
    held_out_greedy_talk_score: Interval | None = None
    held_out_questions: Interval | None = None
    held_out_parts: dict[str, Interval] = {}


class Best(StageResult):
    """`best.json`: the iteration whose checkpoint has the highest held-out reward."""

    iteration: int
    checkpoint: str
    held_out_reward: KnownInterval
    held_out_greedy_reward: KnownInterval
