"""Results of training and evaluation in an iteration; other results are in `generate.summary` and `convert.result`.

Unknown fields, from a later version, are kept; missing fields, from an earlier version, get their default.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.worth import Rise, Words
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


class WithForeign(StageResult):
    """Sampled episodes with the foreign player, with the policy in each seat in turn, or in `iterate.seat`.

    Attributes:
        reward: Reward of the policy's seats.
        rise: Rise over the first evaluation, paired by state; None for the first one.
    """

    reward: KnownInterval
    rise: Interval | None = None


class Evaluated(StageResult):
    """Figures of a checkpoint on the held-out states of a run.

    Attributes:
        held_out_talk_score: Talk score of the sampled episodes; None if it is not measured.
        held_out_greedy_talk_score: Talk score of the greedy episodes; None if it is not measured.
        wordless: Known expected rewards of strategies without words, by name.
        held_out_questions: Questions per episode; None in self-play.
        held_out_parts: Figures that are parts of one total, such as the causes of lost reward, by name.
        held_out_words: Worth of words by mode; empty unless messages were swapped.
        held_out_foreign: Reward with the foreign player; None without one.
        held_out_rises: Rises over the first evaluation by mode; empty for the first one.
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
    held_out_words: dict[str, Words] = Field(default={}, exclude_if=lambda words: not words)
    held_out_foreign: WithForeign | None = Field(default=None, exclude_if=lambda found: found is None)
    held_out_rises: dict[str, Rise] = Field(default={}, exclude_if=lambda rises: not rises)
    wordless: dict[str, Interval] = {}


class Best(StageResult):
    """Content of `best.json`: the iteration with the highest held-out reward."""

    iteration: int
    checkpoint: str
    held_out_reward: KnownInterval
    held_out_greedy_reward: KnownInterval
