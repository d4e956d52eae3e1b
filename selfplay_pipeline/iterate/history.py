"""Figures per iteration, detection of a collapse, and choice of the best iteration, without side effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.generate.summary import Played
from selfplay_pipeline.iterate.folder import RunState, Stage
from selfplay_pipeline.iterate.held_out import (
    FOREIGN_REWARD,
    FOREIGN_RISE,
    GREEDY_TALK,
    PARTS,
    REWARD_RISE,
    SAMPLED_TALK,
    WORDLESS,
    WORTH,
    Evaluated,
)
from selfplay_pipeline.iterate.results import Best, Trained
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.metrics.figures import TALK, figures_of, summarised
from selfplay_pipeline.metrics.signal import Signal

EPISODE_FIGURES = ("reward_standard_error", "distinct_messages", *summarised())
"""Figures of every game that `metrics.jsonl` has; the game's own figures are added."""

MIN_ENTROPY = 1e-3
"""Token entropy in nats; below it, the policy counts as deterministic."""
MAX_FLAT_GROUPS = 0.95
"""Share of groups without a signal; this share or a larger one counts as a collapse."""
MAX_REPEATED = 0.5
"""Share of messages that repeat an earlier message of their episode; a larger share counts as a collapse."""
MAX_SILENT = 0.9
"""Share of episodes with a proposal before any message; a larger share counts as a collapse (see TALKATIVE)."""
TALKATIVE = 0.5
"""Initial share of episodes with a proposal before any message, below which MAX_SILENT applies to a run."""
MAX_LOG_PROB_GAP = 0.1
"""Mean difference in nats between the engine's and the trainer's log-probs at the first step, above which a run is
reported; `MAX_ROUNDING` stops it.
"""


@dataclass
class Iteration:
    """Results of one iteration; iteration 0 evaluates the initial checkpoint.

    Attributes:
        number: Number of the iteration.
        played: Figures of the training episodes, played by the checkpoint of the previous iteration.
        trained: Result of the training; set only together with `played`.
        evaluated: Held-out figures of the checkpoint that the iteration made.
        seconds: Wall-clock time of each stage.
        collapse: Signs of a collapse up to this iteration; None without one.
        converted: Counts of the conversion.
    """

    number: int
    played: Played | None = None
    trained: Trained | None = None
    evaluated: Evaluated | None = None
    seconds: dict[Stage, float] = field(default_factory=dict)
    collapse: str | None = None
    converted: Converted | None = None

    def to_line(self) -> dict[str, Any]:
        """Returns the iteration as a line of `metrics.jsonl`, without figures that were not measured."""
        line: dict[str, Any] = {"iteration": self.number}
        if self.played and self.trained:
            own = {name for name, value in (self.played.model_extra or {}).items() if isinstance(value, int | float)}
            line |= self.played.model_dump(include={*EPISODE_FIGURES, *own}, exclude_none=True)
            line["groups_without_signal"] = signal_of(self.played, self.converted).share
            if self.converted and self.converted.trained_reward is not None:
                line["trained_reward"] = self.converted.trained_reward
            line |= self.played.model_dump(include={"partners"})
            line |= self.trained.model_dump(include={"steps", "checkpoint", "log_prob_gap", "staleness"})
        if self.evaluated:
            line |= self.evaluated.to_line()
        return line | {"seconds": self.seconds, "collapse": self.collapse}


def signal_of(played: Played, converted: Converted | None) -> Signal:
    """Returns the number of groups, and of groups without a signal, by the rewards that are trained on."""
    found = played if converted is None or converted.trained_reward is None else converted
    return Signal(found.groups, found.groups_without_signal)


@dataclass(frozen=True)
class _Signs:
    """Figures that show a collapse; figures that were not measured have healthy defaults."""

    token_entropy: float = 1.0
    groups_without_signal: float = 0.0
    repeated_messages: float = 0.0
    proposed_without_message: float = 0.0
    log_prob_gap: float = 0.0

    @classmethod
    def of(cls, iteration: Iteration) -> _Signs:
        line = iteration.to_line()
        found = {sign.name: line.get(sign.name) for sign in fields(cls)}
        if line.get("staleness"):  # the gap then holds the movement of the policy as well
            found["log_prob_gap"] = None
        return cls(**{name: value for name, value in found.items() if value is not None})


def history_of(state: RunState) -> list[Iteration]:
    """Returns the iterations that were evaluated or trained, in order."""
    history: list[Iteration] = []
    for number, stages in sorted(state.iterations.items()):
        played, trained = state.played(number), state.trained(number)
        if number and not (played and trained):
            continue
        seconds = {stage: round(record.seconds, 1) for stage, record in stages.items()}
        history.append(Iteration(number, played, trained, state.evaluated(number), seconds))
        history[-1].converted = state.converted(number)
        history[-1].collapse = collapse_reason(history)
    return history


def in_words(iteration: Iteration, *games: Game) -> str:
    """Returns one line with an iteration's figures.

    Args:
        iteration: The iteration.
        games: The played game, which gives its own figures their labels.
    """
    parts = []
    played, trained, evaluated = iteration.played, iteration.trained, iteration.evaluated
    if played and trained:
        parts += [
            f"reward {played.mean_reward:.3f} ± {played.reward_standard_error:.3f}",
            *trained_on(iteration),
            f"agreed {played.agreement_rate:.1%}",
            f"illegal {played.illegal_per_episode:.3f}",
            f"{trained.steps} steps",
        ]
        if played.partners:
            with_each = (f"{partner} {one.mean_reward:.3f}" for partner, one in played.partners.items())
            parts.append(f"reward with {', '.join(with_each)}")
        if played.questions_per_episode is not None:
            parts.append(f"{played.questions_per_episode:.2f} questions")
    if evaluated:
        parts += [f"held out {evaluated.reward}", f"greedy {evaluated.greedy_reward}"]
        foreign = evaluated.interval(FOREIGN_REWARD)
        parts += [f"with the foreign player {foreign}"] if foreign else []
        scores = (evaluated.interval(SAMPLED_TALK), evaluated.interval(GREEDY_TALK))
        parts += [f"{TALK.label} {scores[0]}, greedy {scores[1]}"] if all(scores) else []
        worth = [f"{mode} {interval}" for mode, interval in evaluated.by_mode(WORTH).items()]
        parts += [f"worth of words {', '.join(worth)}"] if worth else []
        lines = evaluated.below(WORDLESS)
        parts += [f"without words {wordless_in_words(lines)}"] if lines else []
        parts += [f"{figures_of(*games)[name].label} {interval}" for name, interval in evaluated.below(PARTS).items()]
    return ", ".join(parts)


def trained_on(iteration: Iteration) -> list[str]:
    """Returns a short text with the mean trained reward; empty if it is the game's own reward."""
    mean = iteration.converted.trained_reward if iteration.converted else None
    return [] if mean is None else [f"trained reward {mean:.3f}"]


def wordless_in_words(lines: Mapping[str, Interval]) -> str:
    """Returns a short text with the expected rewards of strategies without words."""
    return ", ".join(f"{name} {line.value:.3f}" for name, line in lines.items())


def best_iteration(history: Sequence[Iteration]) -> Best | None:
    """Returns the evaluated iteration with the highest held-out reward; None if none was evaluated."""
    evaluated = [(iteration.number, iteration.evaluated) for iteration in history if iteration.evaluated]
    if not evaluated:
        return None
    number, best = max(evaluated, key=lambda one: one[1].reward.value)
    return Best(
        iteration=number,
        checkpoint=best.checkpoint,
        held_out_reward=best.reward,
        held_out_greedy_reward=best.greedy_reward,
    )


def collapse_reason(history: Sequence[Iteration]) -> str | None:
    """Returns the signs of a collapse in the newest iteration; None without any."""
    trained = [iteration for iteration in history if iteration.trained]
    if not trained:
        return None
    first, last = _Signs.of(trained[0]), _Signs.of(trained[-1])
    reasons = {
        f"the policy is as good as deterministic: {last.token_entropy:.1e} nats a token": (
            last.token_entropy < MIN_ENTROPY
        ),
        f"{last.groups_without_signal:.0%} of the groups carry no signal": (
            last.groups_without_signal >= MAX_FLAT_GROUPS
        ),
        f"{last.repeated_messages:.0%} of the messages repeat an earlier one": last.repeated_messages > MAX_REPEATED,
        f"{last.proposed_without_message:.0%} of the episodes propose before any message": (
            last.proposed_without_message > MAX_SILENT and first.proposed_without_message < TALKATIVE
        ),
        f"engine and trainer disagree by {last.log_prob_gap:.2f} nats a token": last.log_prob_gap > MAX_LOG_PROB_GAP,
    }
    found = [reason for reason, holds in reasons.items() if holds]
    return "; ".join(found + _fallen(history) + private_code(history)) or None


def private_code(history: Sequence[Iteration]) -> list[str]:
    """Returns one sign of a private code if the newest evaluation shows it; else an empty list.

    The rule: in each of the newest two evaluations, the interval of the rise of the sampled reward lies above 0, and
    that of the rise of the sampled reward with the foreign player lies below 0. A rise is over the first evaluation,
    paired by state. One evaluation alone would err too often: where the reward with the foreign player stays the same
    and the evaluations err independently, 20 of them make a false alarm with a probability of 0.21, two in a row with
    one of 0.04. If the errors of successive evaluations are correlated (a first-order autoregression), two in a row do
    so with a probability of up to 0.08.
    """
    evaluated = [iteration.evaluated for iteration in history if iteration.evaluated]
    newest = [(one.interval(REWARD_RISE["sampled"]), one.interval(FOREIGN_RISE)) for one in evaluated[-2:]]
    if len(newest) < 2 or not history[-1].evaluated or not all(map(_parts_ways, *zip(*newest, strict=True))):
        return []
    own, foreign = newest[-1]
    assert own and foreign
    return [f"a private code: the reward rose by {own:+}, and with the foreign player by {foreign:+}"]


def _parts_ways(own: Interval | None, foreign: Interval | None) -> bool:
    """Whether the own reward rose and the one with the foreign player fell, interval by interval."""
    if own is None or own.low is None or foreign is None or foreign.high is None:
        return False
    return own.low > 0 > foreign.high


def _fallen(history: Sequence[Iteration]) -> list[str]:
    """Returns one sign of a collapse if the newest held-out reward is below the best one, interval below interval; else
    an empty list.
    """
    best, newest = best_iteration(history), history[-1].evaluated
    if best is None or newest is None or newest.reward.high >= best.held_out_reward.low:
        return []
    return [
        f"held-out reward fell from {best.held_out_reward.value:.3f} after iteration {best.iteration} "
        f"to {newest.reward.value:.3f}"
    ]
