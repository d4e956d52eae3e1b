"""DialOp's reviewer matching ("Optimization"): the configuration, the board and its score.

Rules: Lin, Tomlin, Andreas, Eisner, "Decision-Oriented Dialogue for Human-AI Collaboration" (arXiv 2305.20076) and its
game code (repository jlin816/dialop). The game code's text environment misreads some proposals; `text.py` does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.optimize import linear_sum_assignment

from selfplay_pipeline.games.matching.names import PAPERS
from selfplay_pipeline.games.matching.proposals import Matching as Matching
from selfplay_pipeline.games.tagged_session import TaggedSettings

DIALOPS_BOARD = ("size", "max_score", "score_power", "visibility", "scale_max", "hard_factor")
"""Fields that must have DialOp's values for comparisons with the rewards of its human pairs."""
VISIBLE = 0.4
"""Chance that a player sees a cell with `visibility: independent`."""
SCALE_MIN = 1.0
"""Smallest private scale of a player."""


class MatchingConfig(TaggedSettings):
    """Board and limits of the game.

    The board's defaults are DialOp's, with three exceptions: DialOp ends a game after 30 turns, ends no game for
    illegal actions, and sometimes keeps a state that fails the hard filter (`unfiltered_after`).
    """

    name: Literal["matching"] = "matching"
    """Name of the game."""
    size: Annotated[int, Field(ge=2, le=len(PAPERS))] = 8
    """Number of reviewers, and of papers."""
    max_score: Annotated[int, Field(ge=1)] = 99
    """Largest score; scores are whole numbers from 0 to this one."""
    score_power: Annotated[int, Field(ge=1, le=10)] = 1
    """Skew of the scores ⌊(max_score + 1) · u^score_power⌋, with u uniform in [0, 1): 1 gives uniform scores, larger
    values give few large ones."""
    visibility: Literal["independent", "complementary", "one_sided"] = "independent"
    """Rule of visibility: `independent`, `complementary` or `one_sided`.

    `independent` shows each cell to each player with a chance of 0.4. `complementary` shows each cell to exactly one
    player. `one_sided` shows every cell to player 0 and none to player 1, who proposes.

    With `one_sided`, only what player 0 says can make a plan better than any other, so it needs `protocol: fixed` and
    `hard_factor: 0`. With `messages: 1` player 0 speaks; with `messages: 2` player 1 asks first.

    With `complementary`, no filter (`hard_factor: 0`) and skewed scores (`score_power: 3`), a player can know little of
    the best plan before the partner tells it scores: such a state is called honest.
    """
    scale_max: Annotated[float, Field(ge=SCALE_MIN)] = 10.0
    """Largest value of a player's private scale, the factor by which the scores that the player sees are multiplied;
    the smallest is 1. With 1 both players see the same scores."""
    hard_factor: Annotated[float, Field(ge=0)] = 1.25
    """Strength of the hard filter: a state is kept only if, for both players, own-view best × this < pooled best; 0
    keeps every state. Own-view best is the score of the plan that is best on one player's view; pooled best is the
    score of the plan that is best on both views."""
    unfiltered_after: Annotated[int, Field(ge=0)] = 0
    """Number of draws that fail the hard filter after which the next state is kept unfiltered; 0 always filters.

    DialOp uses 10,001: about 3 % of its states, including those of 6 of the 134 human episodes, do not pass the filter.
    """
    max_words: Annotated[int, Field(ge=0)] = 0
    """Largest number of words in a message, so that a player must choose what to say; a longer message is illegal. 0 is
    no limit. Scripted players do not count their words."""
    max_length: Annotated[int, Field(ge=1)] = 100
    """Maximum number of turns in an episode, counting all players and illegal turns. Without agreement by then, the
    reward is 0."""

    @model_validator(mode="after")
    def _one_sided_needs_words(self) -> Self:
        if self.visibility == "one_sided" and self.protocol != "fixed":
            raise ValueError(
                "visibility one_sided needs protocol: fixed; in free play player 0, who sees every cell, would propose"
            )
        if self.visibility == "one_sided" and self.hard_factor:
            raise ValueError(
                "visibility one_sided needs hard_factor: 0, since player 0 knows the best plan of every state"
            )
        return self

    @property
    def proposer(self) -> int:
        return 1 if self.visibility == "one_sided" else super().proposer

    @property
    def proposers(self) -> tuple[int, ...]:
        """Players whose views a proposal without words can rest on."""
        return (1,) if self.visibility == "one_sided" else (0, 1)

    @property
    def mean_score(self) -> float:
        """Score that a player assumes for an unknown cell.

        For uniform scores it is DialOp's (max_score + 1) // 2. Otherwise it is the expected score: the sum over s = 1,
        …, max_score of the chance 1 - (s / (max_score + 1))^(1 / score_power) that a score is s or more.
        """
        if self.score_power == 1:
            return (self.max_score + 1) // 2
        steps = np.arange(1, self.max_score + 1) / (self.max_score + 1)
        return float((1 - steps ** (1 / self.score_power)).sum())

    @property
    def is_dialops_board(self) -> bool:
        """Whether rewards can be compared with those of DialOp's human pairs."""
        return all(getattr(self, name) == MatchingConfig.model_fields[name].default for name in DIALOPS_BOARD)


@dataclass(frozen=True)
class MatchingState:
    """One problem. Rows are reviewers, columns papers; shapes are (size, size).

    Attributes:
        table: True scores; cells that neither player sees hold the mean, rounded.
        masks: For each player, True in the cells that it sees.
        scales: Factor of each player's displayed scores.
        best: Value of the best matching on the pooled view.
    """

    table: NDArray[np.int64]
    masks: tuple[NDArray[np.bool_], NDArray[np.bool_]]
    scales: tuple[float, float]
    best: int
    papers: tuple[str, ...]
    reviewers: tuple[str, ...]

    @property
    def size(self) -> int:
        return int(self.table.shape[0])

    def view(self, seat: int) -> list[list[int | None]]:
        """Returns the view of `seat`: `int(value × scale)` for each visible cell, None elsewhere."""
        scale, mask = self.scales[seat], self.masks[seat]
        return [
            [int(value * scale) if seen else None for value, seen in zip(row, shown, strict=True)]
            for row, shown in zip(self.table.tolist(), mask.tolist(), strict=True)
        ]

    def score(self, matching: Matching) -> int:
        """Returns the sum of the true scores of the (reviewer, paper) pairs."""
        return int(sum(self.table[reviewer, paper] for reviewer, paper in matching))

    def to_dict(self) -> dict[str, Any]:
        """Returns the state under DialOp's field names, plus the names of papers and reviewers."""
        return {
            "table": self.table.tolist(),
            "mask1": self.masks[0].astype(int).tolist(),
            "mask2": self.masks[1].astype(int).tolist(),
            "scale1": self.scales[0],
            "scale2": self.scales[1],
            "best_assignment_reward": self.best,
            "papers": list(self.papers),
            "reviewers": list(self.reviewers),
        }


def best_matching(table: NDArray[np.int64] | NDArray[np.float64]) -> tuple[Matching, float]:
    """Returns the maximum-weight perfect matching and its value (Hungarian method, scipy)."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    pairs = tuple((int(r), int(c)) for r, c in zip(rows, columns, strict=True))
    return pairs, float(table[rows, columns].sum())


def own_view_matching(state: MatchingState, seat: int, mean: float) -> Matching:
    """Returns the best plan from the view of `seat` alone; cells that it does not see count as the mean."""
    return best_matching(np.where(state.masks[seat], state.table, mean))[0]


def check_matching(pairs: Any, size: int) -> None:
    """Raises ValueError unless the (reviewer, paper) pairs give each paper one reviewer and each reviewer one paper."""
    places = list(range(size))
    try:
        reviewers, papers = ([*side] for side in zip(*pairs, strict=True))
        whole = sorted(reviewers) == sorted(papers) == places
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise ValueError(f"{pairs} is not a matching of {size} and {size}")
