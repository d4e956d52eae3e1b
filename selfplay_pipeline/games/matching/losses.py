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
from selfplay_pipeline.games.tags import untagged

NEARER = 1e-6
"""Bonus of a pair in common with the proposal, which only decides between equally good plans."""


@dataclass(frozen=True)
class Losses:
    """Shares of the best score.

    Attributes:
        telling: what the best plan on what the proposer knew falls short of the best.
        planning: what the proposal falls short of that plan. It is below 0 where a plan that looked worse to its
            proposer was better in truth, which is luck.
        agreement: all of it where no proposal was accepted; then nothing is lost to the other two.
    """

    telling: float = 0.0
    planning: float = 0.0
    agreement: float = 0.0


def told_truly(state: MatchingState, message: Turn) -> set[Cell]:
    """The cells that a message names with the number which its seat sees there."""
    view = state.view(message.seat)
    named = told_cells(untagged(message.text), state.papers, state.reviewers)
    return {(reviewer, paper) for (reviewer, paper), score in named.items() if view[reviewer][paper] == score}


def known_cells(state: MatchingState, turns: Sequence[Turn], config: MatchingConfig) -> list[NDArray[np.bool_]]:
    """Returns the cells that each seat knows before each turn and after the last, each (seats, reviewers, papers).

    A seat knows the cells that it sees and those that it was told truly, whatever its partner's scale.
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
    """The scores that a seat expects, shape (reviewers, papers): the true ones where it knows them, else the mean.

    What the hard filter says of the other cells is left out.
    """
    return np.where(known, state.table, float(config.mean_score))


def lost(state: MatchingState, turns: Sequence[Any], config: MatchingConfig, *, agreed: bool) -> Losses | None:
    """Returns the losses of an episode's reward.

    Args:
        turns: with the `proposal` of each.

    Returns:
        None for a state that is not of these rules, where it is unknown what a seat expects of other cells, and where
        no turn tells what was agreed, as in files that others wrote.
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
    """Returns the proposal of a turn in the form of the rules."""
    return tuple((reviewer, paper) for reviewer, paper in turn.proposal)


def possible_score(state: MatchingState, known: NDArray[np.bool_], config: MatchingConfig, near: Matching = ()) -> int:
    """The true score of the best plan on what a seat knows.

    Args:
        near: of several best plans the one counts that is most like this one.
    """
    expected = expected_scores(state, known, config)
    for pair in near:
        expected[pair] += NEARER
    return state.score(best_matching(expected)[0])


def notes(state: MatchingState, turns: Sequence[Any], config: MatchingConfig) -> list[str]:
    """Returns a remark on each turn: false claims, the value told of a message, the value used of a proposal; else "".

    Both values are points that a seat expects, and may exceed the best score, which it does not know. A message changes
    what its hearer expects of the best plan on what it knows; a proposal may promise its own seat less than that.
    """
    values = _values(state, turns, config) if _is_of(config, state) else [""] * len(turns)
    said = ((false_claims(state, turn), value) for turn, value in zip(turns, values, strict=True))
    return ["; ".join(filter(None, parts)) for parts in said]


def false_claims(state: MatchingState, turn: Turn) -> str:
    """Returns the cells of a message whose number is not the one that its seat sees there, in words; "" without any."""
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
    """Returns the value told of each message and the value used of each proposal, in words; "" for other turns."""
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
