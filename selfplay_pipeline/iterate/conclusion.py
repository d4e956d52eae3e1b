"""Sentences on the claims that a run's evaluations do and do not support. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Claim:
    """A statement about a figure, and the intervals that may support it.

    Attributes:
        text: The statement; an interval that lies above `line` shows it.
        intervals: Intervals of the figure by mode; empty if it was not measured.
        line: Value that the intervals are compared with.
        opposite: Opposite statement, which an interval below `line` shows; empty without one.
        explained: Explanation that follows the statement once; empty if it needs none.
    """

    text: str
    intervals: Mapping[str, Interval]
    line: float = 0.0
    opposite: str = ""
    explained: str = ""

    def shown_by(self, interval: Interval) -> str:
        """Returns the statement that an interval shows; empty if it shows none."""
        if interval.low is None or interval.high is None:
            return ""
        return self.text if interval.low > self.line else self.opposite if interval.high < self.line else ""

    def sentences(self) -> tuple[list[str], list[str]]:
        """Returns sentences on what is shown and on what is not, each with the figures of its modes."""
        by_statement: dict[str, list[str]] = {}
        for mode, interval in self.intervals.items():
            figure = f"{mode} {interval:{'+' if self.opposite else ''}}"
            by_statement.setdefault(self.shown_by(interval), []).append(figure)
        missing = by_statement.pop("", [] if self.intervals else ["not measured"])
        shown = [
            f"On held-out states {text}{self.explained}: {', '.join(figures)}."
            for text, figures in by_statement.items()
        ]
        explained = "" if shown else self.explained
        return shown, [f"It is not shown that {self.text}{explained}: {', '.join(missing)}."] if missing else []


def conclusion(history: Sequence[Iteration]) -> list[str]:
    """Returns sentences on the claims that a run supports, on those that it does not, and on the limits of any one run.

    A rise is the last evaluation minus the first one, paired by state. Every statement rests on the end of a 95 %
    interval over states.
    """
    evaluated = [iteration.evaluated for iteration in history if iteration.evaluated]
    if len(evaluated) < 2:
        return ["Nothing is shown: fewer than two evaluations were made."]
    parts = [claim.sentences() for claim in _claims(evaluated[-1])]
    shown, missing = ([sentence for part in parts for sentence in part[side]] for side in (0, 1))
    free = ", and in free play actions tell too" if evaluated[-1].below(WORDLESS) and not _bound(evaluated[-1]) else ""
    return [
        *(shown or ["Nothing is shown on held-out states."]),
        *missing,
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
