"""Partner that tells only the cells that it is asked for, and two players for measuring the worth of questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.matching.mentions import Cell
from selfplay_pipeline.games.matching.proposals import parse_action
from selfplay_pipeline.games.matching.questions import NOUNS, asked_pairs
from selfplay_pipeline.games.matching.rules import best_matching
from selfplay_pipeline.games.matching.scripted import PlayerView, ask, estimate, heard_cells, own_cells, propose, tell
from selfplay_pipeline.games.questions import is_question
from selfplay_pipeline.games.tags import ActionKind


@dataclass(frozen=True)
class Shy:
    """Never volunteers a score, and proposes only if the protocol demands it.

    It tells a score only if asked for exactly that reviewer and paper (`none` if it does not see the cell), and answers
    other questions vaguely. It judges a proposal by the cells that it sees and was told: it rejects a proposal worth
    clearly less than the best plan from these cells.
    """

    GOOD_ENOUGH = 0.6
    """Share of the estimated value of its own plan that a proposal must reach.

    A strict judge reveals scores to a player that keeps proposing: at 0.8, `quiet`, which never asks, reaches a reward
        of 0.90 on DialOp's boards. At 0.6, `quiet` reaches only the reward of its own view, and 15 % of random
        matchings are rejected.
    """
    HELLO, VAGUE, HEARD, REJECTED = (f"[message] {words}" for words in ("hi", "some high some low", "ok", "try again"))

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            table = estimate(view, heard_cells(view))
            offered = sum(float(table[pair]) for pair in view.pending)
            return "[accept]" if offered >= self.GOOD_ENOUGH * best_matching(table)[1] else "[reject]"
        if view.due is ActionKind.PROPOSE:
            return propose_another(view, heard_cells(view))
        if not view.history:
            return self.HELLO
        speaker, text = view.history[-1]
        if speaker == view.seat:
            return self.REJECTED
        pairs = sorted(asked_pairs(text, view.papers, view.reviewers))
        if pairs:
            return tell(view, {(reviewer, paper): view.table[reviewer][paper] for reviewer, paper in pairs})
        return self.VAGUE if is_question(text, NOUNS) else self.HEARD


@dataclass(frozen=True)
class Quiet:
    """Never asks and never tells: proposes the best plan given its own view, and another plan after each rejection."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        return tell(view, {}) if view.says(False) else propose_another(view, {})


@dataclass(frozen=True)
class Asker:
    """Asks for every cell that it does not see, then proposes the best plan given all known cells."""

    PAIRS_A_MESSAGE = 8

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        wanted = unasked_cells(view)
        if view.says(bool(wanted)):
            return ask(view, wanted[: self.PAIRS_A_MESSAGE]) if wanted else tell(view, {})
        return propose_another(view, heard_cells(view))


def unasked_cells(view: PlayerView) -> list[Cell]:
    """Returns the cells that a player neither sees nor has asked for, row by row."""
    asked = set[Cell]().union(*(asked_pairs(text, view.papers, view.reviewers) for text in view.said(view.seat)))
    known = own_cells(view).keys() | asked
    return [
        (reviewer, paper)
        for reviewer in range(len(view.reviewers))
        for paper in range(len(view.papers))
        if (reviewer, paper) not in known
    ]


def propose_another(view: PlayerView, heard: Mapping[Cell, int]) -> str:
    """Returns the proposal of the best plan; each rejection lowers the weight of the rejected pairs."""
    table = estimate(view, heard)
    for text in view.said(view.seat):
        if text.startswith("[propose]"):
            for pair in parse_action(text, view.papers, view.reviewers).proposal or ():
                table[pair] *= 0.9
    return propose(view, best_matching(table)[0])
