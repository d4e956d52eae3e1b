"""Sentences on what evaluated episodes do and do not show. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from selfplay_pipeline.evaluate.run import Evaluation
from selfplay_pipeline.metrics.bootstrap import Interval

STATES = "these states"
UNCOMPARED = "The reward is not compared with play without words, so it alone does not show that words were used."
UNSWAPPED = "Whether the words matter was not measured; `selfplay evaluate --swap-messages` measures it."
LIMITS = (
    "The intervals in brackets (95 %) cover other states, not other training seeds. What taught the player takes "
    "controls, which `make learn` trains."
)


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

    def sentences(self, states: str = "held-out states") -> tuple[list[str], list[str]]:
        """Returns sentences on what is shown on the states and on what is not, each with the figures of its modes."""
        by_statement: dict[str, list[str]] = {}
        for mode, interval in self.intervals.items():
            figure = f"{mode} {interval:{'+' if self.opposite else ''}}"
            by_statement.setdefault(self.shown_by(interval), []).append(figure)
        missing = by_statement.pop("", [] if self.intervals else ["not measured"])
        shown = [f"On {states} {text}{self.explained}: {', '.join(figures)}." for text, figures in by_statement.items()]
        explained = "" if shown else self.explained
        return shown, [f"It is not shown that {self.text}{explained}: {', '.join(missing)}."] if missing else []


def in_sentences(claims: Iterable[Claim], states: str = "held-out states") -> list[str]:
    """Returns sentences on the claims that are shown on the states, then on those that are not."""
    parts = [claim.sentences(states) for claim in claims]
    shown, missing = ([sentence for part in parts for sentence in part[side]] for side in (0, 1))
    return [*(shown or [f"Nothing is shown on {states}."]), *missing]


ABOVE_SILENCE = Claim(
    "the reward is above silence",
    {},
    opposite="the reward is below silence",
    explained=" on the same states (silence is the best that play without words reaches on average)",
)
WORTH = Claim("the reward falls when messages are swapped", {}, opposite="the reward rises when messages are swapped")


def verdict(evaluation: Evaluation) -> list[str]:
    """Returns sentences on what an evaluation shows about the use of words, and on its limits."""
    above = {mode: one.above_silence for mode, one in evaluation.modes.items() if one.above_silence}
    worth = {mode: one.words.worth for mode, one in evaluation.modes.items() if one.words}
    return in_words(above, worth, muted=evaluation.mute)


def in_words(
    above: Mapping[Any, Interval], worth: Mapping[Any, Interval], *, muted: bool = False, states: str = STATES
) -> list[str]:
    """Returns sentences on what episodes show about the use of words, and on their limits.

    Every statement rests on the end of a 95 % interval over states.

    Args:
        above: Reward minus silence on the same states, by mode or file; empty if it is unknown.
        worth: Worth of words; empty if no messages were swapped.
        muted: Whether messages were muted.
        states: Text about the states of `above`.
    """
    claims = [replace(ABOVE_SILENCE, intervals=above)] * bool(above) + [replace(WORTH, intervals=worth)] * bool(worth)
    return [
        *(in_sentences(claims, states) if claims else []),
        *([] if above else [UNCOMPARED]),
        *([] if worth or muted else [UNSWAPPED]),
        LIMITS,
    ]
