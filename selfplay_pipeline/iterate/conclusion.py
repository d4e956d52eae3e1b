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
    """

    text: str
    intervals: Mapping[str, Interval]
    line: float = 0.0
    opposite: str = ""

    def shown_by(self, interval: Interval) -> str:
        """Returns the statement that an interval shows; empty if it shows none."""
        if interval.low is None or interval.high is None:
            return ""
        return self.text if interval.low > self.line else self.opposite if interval.high < self.line else ""

    def sentence_parts(self) -> tuple[list[str], list[str]]:
        """Returns the supported and the unsupported statements, each with the figures of its modes."""
        by_statement: dict[str, list[str]] = {}
        for mode, interval in self.intervals.items():
            figure = f"{mode} {interval:{'+' if self.opposite else ''}}"
            by_statement.setdefault(self.shown_by(interval), []).append(figure)
        missing = by_statement.pop("", [] if self.intervals else ["not measured"])
        shown = [f"{text} ({', '.join(figures)})" for text, figures in by_statement.items()]
        return shown, [f"that {self.text} ({', '.join(missing)})"] if missing else []


def conclusion(history: Sequence[Iteration]) -> list[str]:
    """Returns a line with the claims that a run supports or does not, and a line on the limits of a single run.

    A rise is the last evaluation minus the first one, paired by state. Every statement rests on the end of a 95 %
    interval over states.
    """
    evaluated = [iteration.evaluated for iteration in history if iteration.evaluated]
    if len(evaluated) < 2:
        return ["Nothing is shown: fewer than two evaluations were made."]
    parts = [claim.sentence_parts() for claim in _claims(evaluated[-1])]
    shown, missing = ([text for part in parts for text in part[side]] for side in (0, 1))
    sentences = [f"Shown on held-out states: {'; '.join(shown)}." if shown else "Nothing is shown on held-out states."]
    sentences += [f"Not shown: {'; '.join(missing)}."] if missing else []
    sentences += [f"After the last evaluation there is a sign of {sign}." for sign in private_code(history)]
    free = ", and in free play actions tell too" if evaluated[-1].below(WORDLESS) and not _bound(evaluated[-1]) else ""
    return [
        " ".join(sentences),
        "One run cannot show that the policy learned by talking: it has one seed and no control that hears no "
        f"messages{free}. `make learn` trains several seeds and the controls.",
    ]


def _claims(last: Evaluated) -> Iterator[Claim]:
    """Yields the claims that the last evaluation can show."""
    yield Claim("the reward rose", last.by_mode(REWARD_RISE), opposite="the reward fell")
    if rise := last.interval(FOREIGN_RISE):
        text = "the reward with the foreign player {}"
        yield Claim(text.format("rose"), {"sampled": rise}, opposite=text.format("fell"))
    if (line := _bound(last)) and line.value is not None and line.high is not None:
        yield Claim(
            f"the reward is above the silence line of {line.value:.3f}",
            {"sampled": last.reward, "greedy": last.greedy_reward},
            line.high,
        )
    if worth := last.by_mode(WORTH):
        yield Claim("the reward falls when messages are swapped", worth)
        yield Claim("the worth of words rose", last.by_mode(WORTH_RISE), opposite="the worth of words fell")


def _bound(evaluated: Evaluated) -> Interval | None:
    """Returns the silence line if no play without words exceeds it; only then is the talk score measured."""
    return evaluated.below(WORDLESS).get("silence") if evaluated.interval(SAMPLED_TALK) else None
