"""What is measured of an episode of this game, and the lines that its rewards are compared with. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from selfplay_pipeline.games.base import MESSAGE, Turn
from selfplay_pipeline.games.figures import Figure, Measures
from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState, own_view_matching
from selfplay_pipeline.games.tags import ActionKind, untagged

OPTIMAL = 1 - 1e-9
"""Normalised rewards from here on are of an optimal matching."""
HUMAN_PAIRS = 0.921
"""Normalised reward of human pairs on DialOp's 8×8 boards: mean of the 134 games in data/dialop."""
ABOUT_OWN_VIEW = (
    "own view is not the best play without messages: on the built-in 3×3, 4×4 and 8×8 boards, where the hard filter "
    "tells both players that their own plans are bad, that reaches 0.966 ± 0.006, 0.927 and 0.895 ± 0.012, so rewards "
    "up to there are no evidence of talk"
)
"""What must stand beside the line `own view`. Measured apart from this project, by sampling boards that agree with what
a player sees and with the filter: 250 states of 3×3, 32 of 8×8."""

FIGURES = (
    Figure("optimal", "optimal matchings", "higher", True, "Best matchings", "share of games with the best"),
    Figure("proposals", "proposals a game"),
    Figure(
        "questions", "questions an episode", chart="Questions", axis="questions an episode", note="Messages that ask."
    ),
    Figure("specific", "questions for a score", share=True, mean=False),
    Figure("repeated", "of these, asked again", share=True, mean=False),
    Figure("learned", "cells learned a question", "higher", mean=False),
    Figure("leaks", "partner's messages with scores that nobody asked for", share=True, mean=False),
    Figure("told", "visible cells told", share=True, mean=False),
)


def measure(state: MatchingState, turns: Sequence[Turn], reward: float, seats: Sequence[int]) -> Measures:
    """The game's own figures of one episode.

    `told` is the share of the cells visible in these seats that a message named with the number shown there.
    Questions, and what came of them, are counted by `questions.py`.
    """
    visible = told = 0
    asked: Counter[str] = Counter()
    for seat in seats:
        asked.update(asdict(asking(turns, state, seat)))
        view = state.view(seat)
        said = [untagged(turn.text) for turn in turns if turn.seat == seat and turn.action == MESSAGE]
        named = {pair for text in said for pair in told_cells(text, state.papers, state.reviewers).items()}
        visible += int(state.masks[seat].sum())
        told += sum(view[reviewer][paper] == score for (reviewer, paper), score in named)
    return {
        "optimal": (reward >= OPTIMAL, 1),
        "proposals": (sum(turn.action == ActionKind.PROPOSE for turn in turns if turn.seat in seats), 1),
        "questions": (asked["questions"], 1),
        "specific": (asked["specific"], asked["questions"]),
        "repeated": (asked["repeated"], asked["specific"]),
        "learned": (asked["learned"], asked["questions"]),
        "leaks": (asked["leaks"], asked["partner_messages"]),
        "told": (told, visible),
    }


def references(states: Sequence[MatchingState], config: MatchingConfig) -> dict[str, list[float]]:
    """Normalised rewards to compare with, one for each state.

    `random`: the expectation over all matchings; `own_view`: what one player plans from the scores that it sees, an
    unseen one counting as the mean, mean of both players (`ABOUT_OWN_VIEW` says what it is not);
    `optimum`: the best on the pooled view.
    """
    mean = (config.max_score + 1) // 2
    return {
        "random": [float(state.table.mean()) * state.size / state.best for state in states],
        "own_view": [float(np.mean([_alone(state, seat, mean) for seat in (0, 1)])) for state in states],
        "optimum": [1.0] * len(states),
    }


def _alone(state: MatchingState, seat: int, mean: float) -> float:
    return state.score(own_view_matching(state, seat, mean)) / state.best
