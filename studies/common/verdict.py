"""Judges whether the policy learned to cooperate by talking: the rule, in code and in words. Pure.

A rise in reward is no evidence of talk: play without messages scores too, and training may teach it. So all of these
must hold, for sampled and for greedy play, each by the end of a 95 % interval over seeds and states:

- the protocol is fixed, so that no play without the content of messages exceeds the silence line;
- the reward is above the silence line, and with swapped messages it is not; where a script that plays this line played
  the same states, the difference to its reward is taken, since states differ in difficulty, and it must reach the line;
- the worth of words is above that of the warm start, and the reward rose;
- the reward is above that of the training with messages muted, and this control reaches the silence line, since a
  control that learned less than silence allows shows nothing;
- the reward of a placebo, the same training on rewards permuted within groups, or on noise, did not rise;
- the warm start is not above the silence line, since a warm start above it already cooperates by talking;
- there is more than one seed, because otherwise no interval covers another training's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from selfplay_pipeline.metrics.bootstrap import Interval

By = Mapping[str, Interval]
"""Interval of a reward, or of a difference of rewards, for each sampling mode."""


@dataclass(frozen=True)
class Evidence:
    """Measurements that the verdict is based on; empty for an arm that was not trained.

    Attributes:
        seeds: Number of seeds that all arms have, since arms are compared seed by seed.
        protocol: `game.protocol` of the study.
        silent: Reward of the script that plays the silence line, minus this line; empty if none played.
        before: Reward of the warm start minus silence, with messages.
        reward: Reward of self-play after training minus silence, with messages.
        rise: Rise of self-play's reward over the warm start.
        swapped: Reward of self-play after training minus silence, with swapped messages.
        worth_over_warm: Worth of words after training minus that of the warm start.
        muted: Reward of the training with messages muted minus silence, played muted as it was trained.
        over_muted: Reward of self-play minus that of the training with messages muted, played muted as it was trained.
        placebo_rise: Rise of the training on permuted rewards, or on noise if none was permuted, over the warm start.
        over_placebo: Reward of self-play minus that of the placebo.
    """

    seeds: int
    protocol: str
    silent: By
    before: By
    reward: By
    rise: By
    swapped: By
    worth_over_warm: By
    muted: By
    over_muted: By
    placebo_rise: By
    over_placebo: By


@dataclass(frozen=True)
class Condition:
    """One condition of the verdict, whether it holds, and the figures behind it."""

    name: str
    holds: bool
    figures: str


NO_LINE = "there is no silence line"
WARM = "the warm start is not above the silence line"


def conditions(found: Evidence) -> list[Condition]:
    """Returns all conditions, with whether they hold."""
    return [
        Condition("the protocol is fixed", found.protocol == "fixed", found.protocol),
        *([Condition("the script of the silence line reaches it", *_reaches(found.silent))] if found.silent else []),
        Condition(
            WARM,
            bool(found.before) and not any(map(_is_above, found.before.values())),
            each(found.before, "+") or NO_LINE,
        ),
        Condition(
            "the reward is above the silence line",
            above(found.reward),
            each(found.reward, "+") or NO_LINE,
        ),
        Condition(
            "with swapped messages it is not above the silence line",
            bool(found.swapped) and not any(map(_is_above, found.swapped.values())),
            each(found.swapped, "+") or f"no messages were swapped, or {NO_LINE}",
        ),
        Condition(
            "the worth of words is above the warm start's",
            above(found.worth_over_warm),
            each(found.worth_over_warm, "+") or "no messages were swapped",
        ),
        Condition("the reward rose", above(found.rise), each(found.rise, "+")),
        Condition(
            "the training with messages muted reaches the silence line",
            *_reaches(found.muted, f"no training was muted, or {NO_LINE}"),
        ),
        Condition(
            "it is above the training with messages muted",
            above(found.over_muted),
            each(found.over_muted, "+") or "no training was muted",
        ),
        Condition(
            "the placebo, trained on permuted rewards or on noise, did not rise",
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
    """Returns the verdict in one sentence."""
    missing = [condition.name for condition in found if not condition.holds]
    if not missing:
        return "The policy learned to cooperate by talking: every condition holds."
    if missing == [WARM]:
        return (
            "The policy learned to cooperate better by talking than its warm start, which is above the silence line "
            "already: every other condition holds."
        )
    return f"It is not shown that the policy learned to cooperate by talking. What does not hold: {'; '.join(missing)}."


def above(intervals: By) -> bool:
    """Whether there are intervals and all lie above 0."""
    return bool(intervals) and all(map(_is_above, intervals.values()))


def _reaches(intervals: By, otherwise: str = "") -> tuple[bool, str]:
    """Returns whether there are intervals and none lies below 0, and the figures in words."""
    reached = bool(intervals) and all(one.high is not None and one.high >= 0 for one in intervals.values())
    return reached, each(intervals, "+") or otherwise


def _is_above(interval: Interval) -> bool:
    return interval.low is not None and interval.low > 0


def each(intervals: By, sign: str = "") -> str:
    """Returns all intervals in words."""
    return ", ".join(f"{mode} {interval:{sign}}" for mode, interval in intervals.items())
