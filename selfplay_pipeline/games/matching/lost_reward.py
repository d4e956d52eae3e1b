"""Losses of an episode's reward: to telling, to planning and to agreement. Pure.

All three are shares of the best score, and add up to 1 - reward in every episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.base import MESSAGE, Turn
from selfplay_pipeline.games.matching.mentions import Cell, told_cells
from selfplay_pipeline.games.matching.names import short_titles
from selfplay_pipeline.games.matching.rules import Matching, MatchingConfig, MatchingState, best_matching
from selfplay_pipeline.games.measured import heard_of
from selfplay_pipeline.games.tags import untagged

NEARER = 1e-6
"""Bonus for a pair in common with the proposal; it decides only between equally good plans."""


@dataclass(frozen=True)
class Losses:
    """Losses as shares of the best score.

    Attributes:
        telling: Best score minus the score of the best plan on the proposer's knowledge.
        planning: Score of that plan minus the score of the proposal. It is negative if the proposal looked worse to its
            proposer but is, by luck, better.
        agreement: 1 if no proposal was accepted (the other losses are then 0), else 0.
    """

    telling: float = 0.0
    planning: float = 0.0
    agreement: float = 0.0

    @property
    def together(self) -> float:
        return self.telling + self.planning + self.agreement


def heard(message: Any, seat: int) -> str:
    """Returns what a seat heard of a message, which may have been swapped for another one."""
    return heard_of(message).get(seat, str(message.text))


def told_truly(state: MatchingState, message: Turn) -> set[Cell]:
    """Returns the cells that a message names, as its receiver heard it, with the score that its author sees."""
    view = state.view(message.seat)
    named = told_cells(untagged(heard(message, 1 - message.seat)), state.papers, state.reviewers)
    return {(reviewer, paper) for (reviewer, paper), score in named.items() if view[reviewer][paper] == score}


def known_cells(state: MatchingState, turns: Sequence[Turn], config: MatchingConfig) -> list[NDArray[np.bool_]]:
    """Returns the cells that each seat knows before each turn and after the last, each (seats, reviewers, papers).

    A seat knows the cells that it sees, and the cells whose true scores it was told, even if it does not know its
    partner's scale.
    """
    known = [np.stack(state.masks)]
    for turn in turns:
        after = known[-1].copy()
        if turn.action == MESSAGE and not config.mute:
            for reviewer, paper in told_truly(state, turn):
                after[1 - turn.seat, reviewer, paper] = True
        known.append(after)
    return known


def expected_scores(state: MatchingState, known: NDArray[np.bool_], config: MatchingConfig) -> NDArray[np.float64]:
    """Returns the scores that a seat expects, shape (reviewers, papers): the true score if it is known, else the mean.

    Information from the hard filter about the other cells is ignored.
    """
    return np.where(known, state.table, float(config.mean_score))


def lost(state: MatchingState, turns: Sequence[Any], config: MatchingConfig, *, agreed: bool) -> Losses | None:
    """Returns the losses of an episode's reward.

    Args:
        turns: Turns of the episode, each with its `proposal`.

    Returns:
        None if the rules do not admit the state, since the expected scores of unknown cells are then undefined, or if
        the players agreed without a recorded proposal, as in files of other programs.
    """
    if not _is_of(config, state):
        return None
    if not agreed:
        return Losses(agreement=1.0)
    made = [number for number, turn in enumerate(turns) if turn.proposal]
    if not made:
        return None
    last = made[-1]
    known = known_cells(state, turns[:last], config)[-1][turns[last].seat]
    proposed = matching_of(turns[last])
    possible = possible_score(state, known, config, near=proposed)
    return Losses((state.best - possible) / state.best, (possible - state.score(proposed)) / state.best)


def matching_of(turn: Any) -> Matching:
    """Returns a turn's proposal as a `Matching`: pairs of reviewer and paper."""
    return tuple((reviewer, paper) for reviewer, paper in turn.proposal)


def possible_score(state: MatchingState, known: NDArray[np.bool_], config: MatchingConfig, near: Matching) -> int:
    """Returns the true score of the best plan given a seat's knowledge.

    Args:
        near: Plan that breaks ties: among several best plans, the one most similar to it counts.
    """
    expected = expected_scores(state, known, config)
    for pair in near:
        expected[pair] += NEARER
    return state.score(best_matching(expected)[0])


def notes(state: MatchingState, turns: Sequence[Any], config: MatchingConfig) -> list[str]:
    """Returns a remark on each turn: false claims, the value of a message, or the value of a proposal; "" without any.

    Both values are expected points. They may exceed the best score, which the seat does not know. The value of a
    message is the change in the expected score of its receiver's best plan. The value of a proposal is its expected
    score for the proposer, next to the expected score of the proposer's best plan.
    """
    values = _values(state, turns, config) if _is_of(config, state) else [""] * len(turns)
    said = ((false_claims(state, turn), value) for turn, value in zip(turns, values, strict=True))
    return ["; ".join(filter(None, parts)) for parts in said]


def false_claims(state: MatchingState, turn: Turn) -> str:
    """Returns the cells that a message names with a wrong score, as text; "" without any."""
    if turn.action != MESSAGE:
        return ""
    view, titles = state.view(turn.seat), short_titles(state.papers)
    wrong = []
    for (row, column), said in told_cells(untagged(turn.text), state.papers, state.reviewers).items():
        seen = view[row][column]
        if seen != said:
            what = "does not see it" if seen is None else f"sees {seen}"
            wrong.append(f"{state.reviewers[row]} {titles[column]} {said} ({what})")
    return f"false: {', '.join(wrong)}" if wrong else ""


def _values(state: MatchingState, turns: Sequence[Any], config: MatchingConfig) -> list[str]:
    """Returns the value of each message and proposal, as text; "" for other turns."""
    known, found = known_cells(state, turns, config), []
    for number, turn in enumerate(turns):
        note = ""
        if turn.action == MESSAGE:
            before, after = (
                best_matching(expected_scores(state, those[1 - turn.seat], config))[1]
                for those in known[number : number + 2]
            )
            note = f"value told: the partner expects {before:.1f} → {after:.1f} points of its best plan"
        elif turn.proposal:
            expected = expected_scores(state, known[number][turn.seat], config)
            used = sum(expected[reviewer, paper] for reviewer, paper in turn.proposal)
            most = best_matching(expected)[1]
            note = f"value used: its proposer expects {used:.1f} points of it, and {most:.1f} of its best plan"
        found.append(note)
    return found


def _is_of(config: MatchingConfig, state: MatchingState) -> bool:
    return state.size == config.size and bool(state.table.max() <= config.max_score)
