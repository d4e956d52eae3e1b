"""What is measured of one play. Pure; every figure is a ratio of sums, so that `bootstrap` can resample states.

Counts of what was said (messages, illegal actions, …) are of the evaluated player's seats alone; in self-play these
are both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

import numpy as np

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.evaluate.bootstrap import Totals
from selfplay_pipeline.games.matching.rules import MatchingGame, MatchingState
from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.text import untagged
from selfplay_pipeline.games.base import ActionKind, ErrorKind, Status
from selfplay_pipeline.generate.records import PlayRecord

OPTIMAL = 1 - 1e-9
"""Normalised rewards from here on are of an optimal matching."""

Figures = dict[str, tuple[float, float]]
"""Numerator and denominator by name."""

LABELS = {
    "reward": "normalised reward",
    "agreed": "agreement rate",
    "reward_if_agreed": "reward given agreement",
    "optimal": "optimal matchings",
    "reward_first": "reward when speaking first",
    "reward_second": "reward when speaking second",
    "illegal": "illegal actions a game",
    "messages": "messages a game",
    "words": "words a game",
    "words_per_message": "words a message",
    "proposals": "proposals a game",
    "questions": "questions a game",
    "specific": "questions for a score",
    "repeated": "of these, asked again",
    "learned": "cells learned a question",
    "leaks": "partner's messages with scores that nobody asked for",
    "turns": "turns a game",
    "told": "visible cells told",
}
"""What people read; `illegal_…` figures are shown only where there are any."""


class Seating(StrEnum):
    """Which seats the evaluated player holds."""

    BOTH = "both"
    """Self-play."""
    EITHER = "either"
    """One, in turns from play to play."""
    FIRST = "first"
    """Player 0's, as in a training opposite a partner."""

    def seats(self, play: int) -> tuple[int, ...]:
        """Those of the play of this number."""
        return {Seating.BOTH: (0, 1), Seating.EITHER: (play % 2,), Seating.FIRST: (0,)}[self]


def play_figures(record: PlayRecord, state: MatchingState, seats: Sequence[int]) -> Figures:
    """All figures of one play.

    `told` is the share of the cells visible in these seats that a message named with the number shown there.
    Questions, and what came of them, are counted by `games/matching/questions.py`.
    """
    reward, agreed = record.outcome.normalized_reward, record.outcome.status is Status.AGREED
    mine = [turn for turn in record.turns if turn.player in seats]
    messages = [untagged(turn.text) for turn in mine if turn.action is ActionKind.MESSAGE]
    words = sum(len(text.split()) for text in messages)
    errors = Counter(turn.error_kind for turn in mine if turn.error_kind)
    visible = told = 0
    asked: Counter[str] = Counter()
    for seat in seats:
        asked.update(asdict(asking(record.turns, state, seat)))
        view = state.view(seat)
        said = [untagged(turn.text) for turn in mine if turn.player == seat and turn.action is ActionKind.MESSAGE]
        named = {pair for text in said for pair in told_cells(text, state.papers, state.reviewers).items()}
        visible += int(state.masks[seat].sum())
        told += sum(view[reviewer][paper] == score for (reviewer, paper), score in named)
    figures: Figures = {
        "reward": (reward, 1),
        "agreed": (agreed, 1),
        "reward_if_agreed": (reward * agreed, agreed),
        "optimal": (reward >= OPTIMAL, 1),
        "illegal": (sum(turn.error is not None for turn in mine), 1),
        "messages": (len(messages), 1),
        "words": (words, 1),
        "words_per_message": (words, len(messages)),
        "proposals": (sum(turn.action is ActionKind.PROPOSE for turn in mine), 1),
        "questions": (asked["questions"], 1),
        "specific": (asked["specific"], asked["questions"]),
        "repeated": (asked["repeated"], asked["specific"]),
        "learned": (asked["learned"], asked["questions"]),
        "leaks": (asked["leaks"], asked["partner_messages"]),
        "turns": (len(mine), 1),
        "told": (told, visible),
        **{f"illegal_{kind.value}": (errors[kind], 1) for kind in ErrorKind},
    }
    if len(seats) == 1:
        figures["reward_first"] = (reward * (seats[0] == 0), seats[0] == 0)
        figures["reward_second"] = (reward * (seats[0] == 1), seats[0] == 1)
    return figures


@dataclass
class Sums:
    """Figures of plays, summed by figure and game state."""

    _sums: dict[str, dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, state: int, figures: Figures) -> None:
        """Add one play of the state of this number."""
        for name, pair in figures.items():
            by_state = self._sums.setdefault(name, {})
            by_state[state] = by_state.get(state, np.zeros(2)) + pair

    def totals(self, states: Iterable[int]) -> Totals:
        """The sums for these states; one without a play counts nothing."""
        numbers, none = list(states), np.zeros(2)
        columns = {
            name: np.array([by_state.get(state, none) for state in numbers]).T for name, by_state in self._sums.items()
        }
        return Totals.of({name: (column[0], column[1]) for name, column in columns.items()})


@dataclass
class Tally:
    """Figures of many plays, summed by game state. Plays lost to the engine are counted but are in no figure."""

    game: MatchingGame
    num_states: int
    seating: Seating
    statuses: Counter[str] = field(default_factory=Counter)
    _sums: Sums = field(default_factory=Sums)

    def add(self, records: Iterable[PlayRecord]) -> Tally:
        for record in records:
            self.statuses[record.outcome.status.value] += 1
            if record.outcome.status is Status.ENGINE_FAILURE:
                continue
            state = self.game.load_state(record.state)
            self._sums.add(record.group_index, play_figures(record, state, self.seating.seats(record.play)))
        return self

    def totals(self) -> Totals:
        """The sums of all figures.

        Raises:
            EngineError: every play was lost to the engine.
        """
        if not self._sums:
            raise EngineError("every play was lost to the engine; see the server's log")
        return self._sums.totals(range(self.num_states))
