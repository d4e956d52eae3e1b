"""Sentences on the claims that a run's evaluations do and do not support. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from selfplay_pipeline.evaluate.verdict import Claim, in_sentences
from selfplay_pipeline.iterate.held_out import (
    FOREIGN_RISE,
    REWARD_RISE,
    SAMPLED_TALK,
    WORDLESS,
    WORTH,
    WORTH_RISE,
    Evaluated,
)
from selfplay_pipeline.iterate.history import Iteration, private_code
from selfplay_pipeline.metrics.bootstrap import Interval


def conclusion(history: Sequence[Iteration]) -> list[str]:
    """Returns sentences on the claims that a run supports, on those that it does not, and on the limits of any one run.

    A rise is the last evaluation minus the first one, paired by state. Every statement rests on the end of a 95 %
    interval over states.
    """
    evaluated = [iteration.evaluated for iteration in history if iteration.evaluated]
    if len(evaluated) < 2:
        return ["Nothing is shown: fewer than two evaluations were made."]
    free = ", and in free play actions tell too" if evaluated[-1].below(WORDLESS) and not _bound(evaluated[-1]) else ""
    return [
        *in_sentences(_claims(evaluated[-1])),
        *(f"After the last evaluation there is a sign of {sign}." for sign in private_code(history)),
        "One run cannot show that the policy learned by talking: it has one seed and no control that hears no "
        f"messages{free}. The intervals in brackets (95 %) cover other states, not other seeds. `make learn` trains "
        "several seeds and the controls.",
    ]


def _claims(last: Evaluated) -> Iterator[Claim]:
    """Yields the claims that the last evaluation can show, that on the rise first."""
    yield Claim("the reward rose", last.by_mode(REWARD_RISE), opposite="the reward fell")
    if rise := last.interval(FOREIGN_RISE):
        text = "the reward with the foreign player {}"
        yield Claim(text.format("rose"), {"sampled": rise}, opposite=text.format("fell"))
    if (line := _bound(last)) and line.value is not None and line.high is not None:
        yield Claim(
            "the reward is above the silence line",
            {"sampled": last.reward, "greedy": last.greedy_reward},
            line.high,
            explained=f" ({line.value:.3f}, the best that play without words reaches on average)",
        )
    if worth := last.by_mode(WORTH):
        yield Claim("the reward falls when messages are swapped", worth)
        yield Claim("the worth of words rose", last.by_mode(WORTH_RISE), opposite="the worth of words fell")


def _bound(evaluated: Evaluated) -> Interval | None:
    """Returns the silence line if no play without words exceeds it; only then is the talk score measured."""
    return evaluated.below(WORDLESS).get("silence") if evaluated.interval(SAMPLED_TALK) else None
