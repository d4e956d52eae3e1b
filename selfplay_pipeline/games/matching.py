"""DialOp's reviewer matching ("Optimization"): sampling, views, turn-taking, scoring.

Rules: Lin, Tomlin, Andreas, Eisner, "Decision-Oriented Dialogue for Human-AI Collaboration" (arXiv 2305.20076)
and its game code (repository jlin816/dialop). Its text environment mis-reads proposals; `text.py` does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator
from scipy.optimize import linear_sum_assignment

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.games.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.prompts import Prompts, load_prompts
from selfplay_pipeline.games.proposals import Matching as Matching
from selfplay_pipeline.games.proposals import format_proposal, named_pairs, short
from selfplay_pipeline.games.text import normalise, parse_action
from selfplay_pipeline.games.types import (
    Action,
    ActionKind,
    Counts,
    ErrorKind,
    Opening,
    Outcome,
    ParseError,
    Status,
    Step,
)
from selfplay_pipeline.sections import LARGEST, Section
from selfplay_pipeline.small_files import parse_json


class MatchingConfig(Section):
    """The board and the limits.

    The board's defaults are DialOp's. Three things are not: its games end after 30 turns, it ends none for illegal
    actions, and it keeps an unfiltered state now and then (`unfiltered_after`).
    """

    model_config = ConfigDict(frozen=True)

    name: Literal["matching"] = "matching"
    """Which game this is."""
    size: Annotated[int, Field(ge=2, le=len(PAPERS))] = 8
    """Number of reviewers, and of papers."""
    max_score: Annotated[int, Field(ge=1)] = 99
    """Largest score; scores are uniform whole numbers from 0."""
    p_visible: Annotated[float, Field(gt=0, le=1)] = 0.4
    """Chance that a player sees a cell, independent for the two players."""
    scale_min: Annotated[float, Field(gt=0)] = 1.0
    """Lower end of the players' private scales, by which the scores that they see are multiplied."""
    scale_max: Annotated[float, Field(gt=0)] = 10.0
    """Upper end of the players' private scales; with equal ends both see the same scores."""
    hard_factor: Annotated[float, Field(ge=0)] = 1.25
    """A state is kept only if own-view best × this < pooled best for both players; 0 keeps every state."""
    unfiltered_after: Annotated[int, Field(ge=0)] = 0
    """After this many draws that fail the hard filter the next one is kept whatever it is; 0 never does so.

    DialOp's is 10,001: about 3 % of its states, 6 of the 134 human games among them, pass no filter.
    """
    max_length: Annotated[int, Field(ge=1)] = 100
    """Turns of both players together, illegal ones included, after which an episode ends without agreement."""
    max_errors: Annotated[int, Field(ge=1)] = 5
    """Illegal actions of one player in a row after which an episode ends without agreement."""
    mute: bool = False
    """Messages reach the partner empty, as a bare `[message]`, which shows what a policy loses without them.

    Proposals and answers never carry words of their own, muted or not.
    """
    prompts: str = "default"
    """Name of a built-in set of prompts (default, compact), or a folder with the same template files."""

    @model_validator(mode="after")
    def _ordered_scales(self) -> MatchingConfig:
        if self.scale_min > self.scale_max:
            raise ValueError(f"scale_min {self.scale_min} is above scale_max {self.scale_max}")
        return self


@dataclass(frozen=True)
class MatchingState:
    """One problem. Rows are reviewers, columns papers; shapes are (size, size).

    Attributes:
        table: true scores; cells that neither player sees hold the mean.
        masks: for each player, True where it sees the cell.
        scales: what each player's displayed scores are multiplied by.
        best: value of the best matching on the pooled view.
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

    def view(self, player: int) -> list[list[int | None]]:
        """What `player` sees: `int(value × scale)` per visible cell, None elsewhere."""
        scale, mask = self.scales[player], self.masks[player]
        return [
            [int(value * scale) if seen else None for value, seen in zip(row, shown, strict=True)]
            for row, shown in zip(self.table.tolist(), mask.tolist(), strict=True)
        ]

    def score(self, matching: Matching) -> int:
        """Sum of the true scores of the (reviewer, paper) pairs."""
        return int(sum(self.table[reviewer, paper] for reviewer, paper in matching))

    def to_dict(self) -> dict[str, Any]:
        """DialOp's field names, plus the names shown."""
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
    """Maximum-weight perfect matching and its value (Hungarian method, scipy)."""
    rows, columns = linear_sum_assignment(table, maximize=True)
    pairs = tuple((int(r), int(c)) for r, c in zip(rows, columns, strict=True))
    return pairs, float(table[rows, columns].sum())


def own_view_matching(state: MatchingState, player: int, mean: float) -> Matching:
    """The best that `player` can plan alone: cells it does not see count as the mean."""
    return best_matching(np.where(state.masks[player], state.table, mean))[0]


class MatchingGame:
    """The rules under one `MatchingConfig`."""

    name = "matching"
    num_players = 2

    MAX_TRIES = 100_000
    """A board that admits no state is refused within two seconds; of 8×8 ones about one in 2,700 is hard enough."""
    DRAWS = 100
    """States drawn at a time."""

    def __init__(self, config: MatchingConfig | None = None) -> None:
        self.config = config or MatchingConfig()
        self.prompts = load_prompts(self.config.prompts)

    def sample_state(self, rng: np.random.Generator) -> MatchingState:
        """Draw states until one passes the hard filter, or the configured number of them failed.

        Raises:
            UserError: no state passed in `MAX_TRIES` draws, so the configuration leaves nothing to talk about.
        """
        config = self.config
        shape = (config.size, config.size)
        mean = (config.max_score + 1) // 2
        failed = 0
        for _ in range(self.MAX_TRIES // self.DRAWS):
            tables = rng.integers(0, config.max_score + 1, (self.DRAWS, *shape))
            masks = rng.random((self.DRAWS, 2, *shape)) < config.p_visible
            scales = rng.uniform(config.scale_min, config.scale_max, (self.DRAWS, 2))
            tables = np.where(masks.any(axis=1), tables, mean)
            for table, mask, scale in zip(tables, masks, scales, strict=True):
                best, hard = self._best(table, mask, mean)
                if hard or (best and failed >= config.unfiltered_after > 0):
                    return MatchingState(
                        table=table,
                        masks=(mask[0], mask[1]),
                        scales=(float(scale[0]), float(scale[1])),
                        best=best,
                        papers=PAPERS[: config.size],
                        reviewers=REVIEWERS[: config.size],
                    )
                failed += 1
        raise UserError(
            f"game: no state passed the hard filter in {self.MAX_TRIES:,} draws "
            f"(size={config.size}, p_visible={config.p_visible}, hard_factor={config.hard_factor}); "
            "lower game.hard_factor or game.p_visible, or set game.unfiltered_after"
        )

    def _best(self, table: NDArray[np.int64], masks: NDArray[np.bool_], mean: int) -> tuple[int, bool]:
        """The value of the best matching, and whether it is out of reach for each player alone."""
        rows, columns = linear_sum_assignment(table, maximize=True)
        best = int(table[rows, columns].sum())
        for mask in masks:
            rows, columns = linear_sum_assignment(np.where(mask, table, mean), maximize=True)
            if table[rows, columns].sum() * self.config.hard_factor >= best:
                return best, False
        return best, True

    def load_state(self, data: dict[str, Any]) -> MatchingState:
        """Read DialOp's field names, checking shapes and the recorded best score.

        Raises:
            UserError: a field is missing, has the wrong shape or disagrees with the table.
        """
        try:
            table = _whole_numbers(data, "table", LARGEST)
            masks = (_whole_numbers(data, "mask1", 1).astype(bool), _whole_numbers(data, "mask2", 1).astype(bool))
            scales = (_positive(data, "scale1"), _positive(data, "scale2"))
            recorded = data["best_assignment_reward"]
        except KeyError as error:
            raise UserError(f"game state: field {error} is missing") from None
        if table.ndim != 2 or table.shape[0] != table.shape[1] or table.shape[0] < 2:
            raise UserError(f"game state: field 'table' has shape {table.shape}, expected a square of 2 or more")
        for name, mask in zip(("mask1", "mask2"), masks, strict=True):
            if mask.shape != table.shape:
                raise UserError(f"game state: field '{name}' has shape {mask.shape}, the table has {table.shape}")
        size = table.shape[0]
        if size > len(PAPERS) and ("papers" not in data or "reviewers" not in data):
            raise UserError(f"game state: a board of {size} needs fields 'papers' and 'reviewers'")
        named = (data.get("papers", PAPERS[:size]), data.get("reviewers", REVIEWERS[:size]))
        papers, reviewers = (tuple(names) if isinstance(names, list | tuple) else () for names in named)
        for field_name, names in (("papers", papers), ("reviewers", reviewers)):
            different = {normalise(name) for name in names if isinstance(name, str)}
            if not len(names) == len(different) == size:
                raise UserError(f"game state: field '{field_name}' needs {size} different names")
        _, best = best_matching(table)
        if best <= 0 or recorded != best:
            raise UserError(
                f"game state: best_assignment_reward is {recorded}, the table's best matching gives {best:g}"
            )
        return MatchingState(table, masks, scales, int(best), papers, reviewers)

    def read_state(self, text: str) -> MatchingState:
        """Load a state from JSON.

        Raises:
            UserError: it is not JSON, or no state.
        """
        try:
            return self.load_state(parse_json(text))
        except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
            raise UserError(f"game state: unusable ({' '.join(str(error).split())})") from None

    def start(self, state: MatchingState) -> MatchingSession:
        return MatchingSession(state, self.config, self.prompts)


def _whole_numbers(data: dict[str, Any], name: str, largest: int) -> NDArray[np.int64]:
    """Rows of numbers from 0 to `largest`.

    Raises:
        UserError: the field is something else.
    """
    rows = data[name]
    try:
        numbers = np.array(rows)
    except (TypeError, ValueError, RecursionError):
        numbers = np.array(None)
    if numbers.dtype.kind not in "biu" or (numbers < 0).any() or (numbers > largest).any():
        raise UserError(f"game state: field '{name}' is not made of rows of whole numbers from 0 to {largest}")
    return numbers.astype(np.int64)


def _positive(data: dict[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST:
        raise UserError(f"game state: field '{name}' is {value!r}, not a number above 0")
    return float(value)


@dataclass
class MatchingSession:
    """One play. Player 0 speaks first."""

    state: MatchingState
    config: MatchingConfig
    prompts: Prompts
    player: int = 0
    status: Status | None = None
    pending: Matching | None = None
    """The proposal that waits for an answer."""
    agreed: Matching | None = None
    history: list[tuple[int, str]] = field(default_factory=list)
    """Legal turns so far as (player, text), as the partner heard them: a message, a bare answer, or a proposal in its
    canonical form. Nothing else of what was written reaches the partner."""
    counts: Counts = field(default_factory=lambda: Counts(errors_in_a_row=[0, 0]))

    def opening(self, player: int) -> Opening:
        shown: dict[str, Any] = {
            "player": player,
            "papers": self.state.papers,
            "short_papers": [short(paper) for paper in self.state.papers],
            "reviewers": self.state.reviewers,
            "view": self.state.view(player),
            "size": self.state.size,
            "max_length": self.config.max_length,
        }
        return Opening(self.prompts.render("system", **shown), self.prompts.render("opening", **shown))

    def step(self, text: str, *, cut: bool = False) -> Step:
        """Take the acting player's turn.

        Args:
            text: what the player said, with one action in it.
            cut: the text was cut by the token limit of a turn, so it is no action.

        Raises:
            RuntimeError: the play is over.
        """
        if self.status is not None:
            raise RuntimeError(f"the play has ended: {self.status}")
        actor, partner = self.player, 1 - self.player
        self.counts.turns += 1
        try:
            if cut:
                raise ParseError(ErrorKind.CUT, "the turn was too long and was cut off; be brief")
            action = parse_action(text, self.state.papers, self.state.reviewers)
            self._check_legal(action)
        except ParseError as error:
            return self._illegal(actor, error)
        self.counts.errors_in_a_row[actor] = 0
        heard = self._heard(action)
        self.history.append((actor, heard))
        observations = ["", ""]
        pairs = named_pairs(action.proposal or (), self.state.papers, self.state.reviewers)
        observations[partner] = self.prompts.render("partner", text=heard, kind=action.kind.value, pairs=pairs)
        if action.kind is ActionKind.MESSAGE:
            self.counts.messages += 1
            self.player = partner
        elif action.kind is ActionKind.PROPOSE:
            self.counts.proposals += 1
            self.pending = action.proposal
            self.player = partner
        elif action.kind is ActionKind.ACCEPT:
            self.agreed, self.status = self.pending, Status.AGREED
        else:
            self.pending = None
            observations[actor] = self.prompts.render("rejected")
        self._check_turn_limit()
        return Step(action, None, tuple(observations))

    def _heard(self, action: Action) -> str:
        """What an action tells the partner."""
        if action.proposal is not None:
            return format_proposal(action.proposal, self.state.papers, self.state.reviewers)
        words = "" if self.config.mute else f" {action.words}"
        return f"[{action.kind}]{words if action.words else ''}"

    def _check_legal(self, action: Action) -> None:
        answers = action.kind in (ActionKind.ACCEPT, ActionKind.REJECT)
        if self.pending is not None and not answers:
            raise ParseError(ErrorKind.NOT_NOW, "a proposal is waiting: answer it with [accept] or [reject]")
        if self.pending is None and answers:
            raise ParseError(ErrorKind.NOT_NOW, f"there is no proposal to {action.kind.value}")

    def _illegal(self, actor: int, error: ParseError) -> Step:
        self.counts.illegal += 1
        self.counts.errors_in_a_row[actor] += 1
        if self.counts.errors_in_a_row[actor] >= self.config.max_errors:
            self.status = Status.ERROR_LIMIT
        self._check_turn_limit()
        observations = ["", ""]
        observations[actor] = self.prompts.render(
            "error",
            error=str(error),
            errors=self.counts.errors_in_a_row[actor],
            max_errors=self.config.max_errors,
            pending=self.pending is not None,
            pairs=named_pairs(
                [(index, index) for index in range(self.state.size)], self.state.papers, self.state.reviewers
            ),
        )
        return Step(Action(ActionKind.INVALID), str(error), tuple(observations), error.kind)

    def _check_turn_limit(self) -> None:
        if self.status is None and self.counts.turns >= self.config.max_length:
            self.status = Status.TURN_LIMIT

    def abort(self, status: Status) -> None:
        """End the play for a cause outside the rules."""
        if self.status is None:
            self.status = status

    def outcome(self) -> Outcome:
        """The result of an ended play.

        Raises:
            RuntimeError: the play is still running.
        """
        if self.status is None:
            raise RuntimeError("the play is still running")
        score = self.state.score(self.agreed) if self.agreed is not None else 0
        return Outcome(
            status=self.status,
            score=score,
            best=self.state.best,
            normalized_reward=score / self.state.best,
            proposal=self.agreed,
            num_turns=self.counts.turns,
            num_messages=self.counts.messages,
            num_proposals=self.counts.proposals,
            num_illegal=self.counts.illegal,
        )
