"""Scripted partners: pure functions of one player's knowledge, which is its own view and the dialogue so far.

Their messages list cells in one fixed form, `Reviewer Paper score` (`[message] Ava BLEU 5 Daniel GloVe 3`), or say
`none`; `mentions.told_cells` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.matching.mentions import Cells, told_cells, written
from selfplay_pipeline.games.matching.rules import SCALE_MIN, Matching, MatchingConfig, best_matching
from selfplay_pipeline.games.matching.session import MatchingSession
from selfplay_pipeline.games.tagged_session import SeatView


@dataclass(frozen=True)
class PlayerView(SeatView):
    """Knowledge of one player at the beginning of its turn.

    Attributes:
        table: Displayed scores of the player, reviewers × papers; None in cells that it does not see.
        pending: Partner's proposal that waits for an answer; None without one.
        max_score: Rule of the board: true scores lie in 0..max_score.
        mean_score: Rule of the board: score to assume for an unknown cell.
        scales: Rule of the board: range from which each player's secret scale was drawn.
        rules: All rules of the board.
    """

    table: tuple[tuple[int | None, ...], ...]
    papers: tuple[str, ...]
    reviewers: tuple[str, ...]
    pending: Matching | None = None
    max_score: int = 99
    mean_score: float = 50
    scales: tuple[float, float] = (1.0, 10.0)
    rules: MatchingConfig = field(default_factory=MatchingConfig)


def player_view(session: MatchingSession, seat: int) -> PlayerView:
    """Returns the knowledge of `seat` in a running episode."""
    state, config = session.state, session.config
    return PlayerView(
        seat=seat,
        table=tuple(map(tuple, state.view(seat))),
        papers=state.papers,
        reviewers=state.reviewers,
        history=session.known_history(seat),
        pending=session.pending,
        due=session.due,
        max_score=config.max_score,
        mean_score=config.mean_score,
        scales=(SCALE_MIN, config.scale_max),
        rules=config,
    )


def own_cells(view: PlayerView) -> Cells:
    """Returns the cells that the player sees, row by row."""
    return {
        (reviewer, paper): score
        for reviewer, row in enumerate(view.table)
        for paper, score in enumerate(row)
        if score is not None
    }


def heard_cells(view: PlayerView) -> Cells:
    """Returns the cells that the partner has told so far."""
    texts = [text for text in view.said(1 - view.seat) if text.lstrip().lower().startswith("[message]")]
    return told_cells("\n".join(texts), view.papers, view.reviewers)


def likely_scale(cells: Mapping[tuple[int, int], int], max_score: int, scales: tuple[float, float]) -> float:
    """Returns an estimate of the scale behind one player's displayed scores.

    A score is shown as `int(value × scale)` of an integer value, so most scales cannot produce a given list of numbers.
    The estimate is the mean of the scales that explain the largest number of them.
    """
    low, high = scales
    if low == high:
        return low
    grid = np.linspace(low, high, 4001)
    shown = np.array(sorted(set(cells.values())) or [0])
    values = np.ceil(shown / grid[:, None] - 1e-9)
    explained = ((np.floor(values * grid[:, None] + 1e-9) == shown) & (values <= max_score)).sum(axis=1)
    return float(grid[explained == explained.max()].mean())


def estimate(view: PlayerView, heard: Mapping[tuple[int, int], int]) -> NDArray[np.float64]:
    """Returns the expected true scores of all cells, shape (reviewers, papers), given the player's view and the told
    cells.

    Both scales are secret; each is estimated from the numbers that its player sees. A cell that both players see is
    taken from the player's own view; a cell that is neither seen nor told counts as the mean.
    """
    table = np.full((len(view.reviewers), len(view.papers)), float(view.mean_score))
    for cells in (heard, own_cells(view)):
        scale = likely_scale(cells, view.max_score, view.scales)
        for cell, score in cells.items():
            table[cell] = score / scale
    return table


def tell(view: PlayerView, cells: Mapping[tuple[int, int], int | None], *, in_words: bool = False) -> str:
    """Returns the message that lists cells, with their scores in digits or `in_words`; a cell without a score is listed
    as `none`.
    """
    words = [
        f"{first_name(view, reviewer)} {_title(view.papers[paper])} "
        f"{'none' if score is None else written(score, in_words=in_words)}"
        for (reviewer, paper), score in cells.items()
    ]
    return "[message] " + (" ".join(words) or "none")


def ask(view: PlayerView, cells: Sequence[tuple[int, int]]) -> str:
    """Returns the message that asks for cells."""
    words = [f"{first_name(view, reviewer)} {_title(view.papers[paper])}?" for reviewer, paper in cells]
    return "[message] " + " ".join(words)


def propose(view: PlayerView, matching: Matching) -> str:
    """Returns the text of a proposal: short titles in the board's order, first names if those are unique."""
    by_paper = sorted(matching, key=lambda pair: pair[1])
    lines = [f"{_title(view.papers[paper])}: {first_name(view, reviewer)}" for reviewer, paper in by_paper]
    return "[propose] Proposal: " + "\n".join(lines)


@dataclass(frozen=True)
class Random:
    """Proposes a random matching at once and accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        if view.says(False):
            return tell(view, {})
        return propose(view, random_matching(view, rng))


@dataclass(frozen=True)
class OwnView:
    """Talks without listening: tells its cells, then proposes the best plan given its view; accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        if view.says(not view.said(view.seat)):
            return tell(view, own_cells(view))
        return propose(view, best_matching(estimate(view, {}))[0])


@dataclass(frozen=True)
class Silent:
    """Listens without talking: passes once, then proposes the best plan given all known cells; accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        heard = heard_cells(view)
        if view.says(not heard and not view.said(view.seat)):
            return tell(view, {})
        return propose(view, best_matching(estimate(view, heard))[0])


@dataclass(frozen=True)
class Sharing:
    """Tells its cells, then proposes the best matching given the cells that it sees and was told.

    It accepts a proposal that comes near its own best plan. If it has heard no cells, it accepts a proposal after
    having told its own cells; otherwise it rejects once and tells them.
    """

    GOOD_ENOUGH = 0.95
    """Share of the estimated value of its own plan that a proposal must reach."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]" if self.agrees(view, view.pending, rng) else "[reject]"
        heard = heard_cells(view)
        if view.says(not heard and not any(text.startswith("[message]") for text in view.said(view.seat))):
            return tell(view, own_cells(view))
        return propose(view, best_matching(estimate(view, heard))[0])

    def agrees(self, view: PlayerView, offered: Matching, rng: np.random.Generator) -> bool:
        """Whether the player accepts the partner's proposal."""
        mine, heard = view.said(view.seat), heard_cells(view)
        if "[reject]" in mine:
            return True
        if not heard:
            return any(text.startswith("[message]") for text in mine)
        table = estimate(view, heard)
        return sum(float(table[pair]) for pair in offered) >= self.GOOD_ENOUGH * best_matching(table)[1]


def random_matching(view: PlayerView, rng: np.random.Generator) -> Matching:
    """Returns a full matching; all matchings are equally likely."""
    papers = rng.permutation(len(view.papers)).tolist()
    return tuple((reviewer, paper) for reviewer, paper in enumerate(papers))


def _title(paper: str) -> str:
    return paper.split(":")[0]


def first_name(view: PlayerView, reviewer: int) -> str:
    """Returns a reviewer's first name, or the whole name if others share the first."""
    first = view.reviewers[reviewer].split()[0]
    unique = sum(first in name.split() for name in view.reviewers) == 1
    return first if unique else view.reviewers[reviewer]
