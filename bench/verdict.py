"""Did the policy learn to cooperate by talking? The rule, in code and in words. Pure.

A rise in reward is no evidence of talk: play without messages scores too, and training may teach it. So all of these
must hold, for sampled and for greedy play, each by the end of a 95 % interval over seeds and states:

- the reward is above the silence line, which the best play without messages reaches;
- it is above what the same training reaches with messages muted, since silent play of several proposals can pass the
  silence line, which counts one;
- it rose, and a placebo, the same training on rewards permuted within groups, did not;
- the warm start is not above the silence line, as one that cooperates by talking already is;
- there is more than one seed, without which no interval says what another training would reach.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selfplay_pipeline.metrics.bootstrap import Interval

By = Mapping[str, Interval]
"""An interval of a reward, or of a difference of rewards, for each way to sample."""


@dataclass(frozen=True)
class Evidence:
    """What was measured; empty where an arm was not trained.

    Attributes:
        seeds: of the arm that has the fewest.
        silence: the silence line, with its error.
        before: the reward of the warm start, with messages.
        reward: of self-play after training, with messages.
        rise: of that over the warm start.
        over_muted: self-play minus the training with messages muted, played muted as it was trained.
        placebo_rise: of the training on permuted rewards over the warm start.
        over_placebo: self-play minus that training.
    """

    seeds: int
    silence: Interval | None
    before: By
    reward: By
    rise: By
    over_muted: By
    placebo_rise: By
    over_placebo: By


@dataclass(frozen=True)
class Condition:
    """One condition of the verdict, whether it holds, and the figures by which."""

    name: str
    holds: bool
    figures: str


WARM = "the warm start is not above the silence line"


def conditions(found: Evidence) -> list[Condition]:
    """Every condition, whether it holds or not."""
    line = found.silence
    passed = line is not None and any(_is_above(one, line.high or 0.0) for one in found.before.values())
    above_silence = line is not None and above(found.reward, line.high or 0.0)
    return [
        Condition(
            WARM,
            bool(found.before) and not passed,
            f"{each(found.before)}; silence {line}" if line else "there is no silence line",
        ),
        Condition(
            "the reward is above the silence line",
            above_silence,
            f"{each(found.reward)}; silence {line}" if line else "there is no silence line",
        ),
        Condition("the reward rose", above(found.rise), each(found.rise, "+")),
        Condition(
            "it is above the same training with messages muted",
            above(found.over_muted),
            each(found.over_muted, "+") or "no training was muted",
        ),
        Condition(
            "the placebo, trained on rewards permuted within groups, did not rise",
            bool(found.placebo_rise) and not any(_is_above(one) for one in found.placebo_rise.values()),
            each(found.placebo_rise, "+") or "no placebo was trained",
        ),
        Condition(
            "self-play is above the placebo",
            above(found.over_placebo),
            each(found.over_placebo, "+") or "no placebo was trained",
        ),
        Condition("there is more than one seed of each arm", found.seeds > 1, str(found.seeds)),
    ]


def verdict(found: list[Condition]) -> str:
    """The verdict in one sentence, whatever it is."""
    missing = [condition.name for condition in found if not condition.holds]
    if not missing:
        return "The policy learned to cooperate by talking: every condition holds."
    if missing == [WARM]:
        return (
            "The policy learned to cooperate better by talking than its warm start, which is above the silence line "
            "already: every other condition holds."
        )
    return f"It is not shown that the policy learned to cooperate by talking. What does not hold: {'; '.join(missing)}."


def above(intervals: By, line: float = 0.0) -> bool:
    """Whether all intervals lie above a line; no interval does not."""
    return bool(intervals) and all(_is_above(interval, line) for interval in intervals.values())


def _is_above(interval: Interval, line: float = 0.0) -> bool:
    return interval.low is not None and interval.low > line


def each(intervals: By, sign: str = "") -> str:
    """All intervals in words."""
    return ", ".join(f"{mode} {interval:{sign}}" for mode, interval in intervals.items())
