"""A partner that tells only what it is asked for, and two players to measure it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.matching import best_matching
from selfplay_pipeline.games.questions import Cell, asked_pairs, is_question
from selfplay_pipeline.games.scripted import PlayerView, ask, estimate, heard_cells, own_cells, propose, tell
from selfplay_pipeline.games.text import parse_action


@dataclass(frozen=True)
class Shy:
    """Never volunteers anything and never proposes.

    It tells a score only when asked for exactly that reviewer and paper (`none` where it does not see it), answers
    other questions vaguely, and judges a proposal by what it sees and was told: it accepts what comes near the best
    that it could plan from that, and rejects the rest.
    """

    GOOD_ENOUGH = 0.6
    """Share of the own plan's estimated value that a proposal must reach.

    A strict judge can be asked by proposing again and again: at 0.8 `quiet`, which never asks, reaches 0.90 on DialOp's
    boards, at 0.6 it stays at what its own view is worth.
    """
    HELLO, VAGUE, HEARD, REJECTED = (f"[message] {words}" for words in ("hi", "some high some low", "ok", "try again"))

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            table = estimate(view, heard_cells(view))
            offered = sum(float(table[pair]) for pair in view.pending)
            return "[accept]" if offered >= self.GOOD_ENOUGH * best_matching(table)[1] else "[reject]"
        if not view.history:
            return self.HELLO
        speaker, text = view.history[-1]
        if speaker == view.player:
            return self.REJECTED
        pairs = sorted(asked_pairs(text, view.papers, view.reviewers))
        if pairs:
            return tell(view, {(reviewer, paper): view.table[reviewer][paper] for reviewer, paper in pairs})
        return self.VAGUE if is_question(text) else self.HEARD


@dataclass(frozen=True)
class Quiet:
    """Never asks and never tells: proposes the best by its own view, and another plan after each rejection."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        return propose_another(view, {})


@dataclass(frozen=True)
class Asker:
    """Asks for every cell that it does not see, then proposes the best of all that both know."""

    PAIRS_A_MESSAGE = 8

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        asked = set[Cell]().union(*(asked_pairs(text, view.papers, view.reviewers) for text in view.said(view.player)))
        known = own_cells(view).keys() | asked
        hidden = [cell for cell in np.ndindex(len(view.reviewers), len(view.papers)) if cell not in known]
        if hidden:
            return ask(view, hidden[: self.PAIRS_A_MESSAGE])
        return propose_another(view, heard_cells(view))


def propose_another(view: PlayerView, heard: Mapping[Cell, int]) -> str:
    """The proposal of the best plan, in which pairs that were rejected together count less with every time."""
    table = estimate(view, heard)
    for text in view.said(view.player):
        if text.startswith("[propose]"):
            for pair in parse_action(text, view.papers, view.reviewers).proposal or ():
                table[pair] *= 0.9
    return propose(view, best_matching(table)[0])
