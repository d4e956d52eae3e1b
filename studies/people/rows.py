"""The rows of episodes on DialOp's boards, seen as digits, from which `studies.people.warm_start` makes a warm start.

Seats speak as `deaf-teacher` does: they tell what they see, and plan by their own view alone, but by the exact scores
behind their digits. Rows are made of tokens, without the game, so that a CPU makes hundreds in a second; tests compare
them with the game's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.states import sample_state
from studies.people.rounded import RoundedState

RULES = MatchingConfig(hard_factor=0, prompts="compact")
"""DialOp's rules without the hard filter, so that any number of states can be drawn."""
FULL = RULES.size
PARTLY, ANSWERS, REJECTS = 0.2, 0.3, 0.02
"""Chances that half of the cells are told, that seat 1 tells its cells too, and that a proposal is rejected."""
LAST_REJECTED = 6
"""Turn from which on nothing is rejected."""


class Soft(NamedTuple):
    """Chances of the names in a proposal, which are learned in place of the drawn names.

    Attributes:
        places: Place of each name in the row.
        names: Tokens of all reviewers.
        chances: Chance of each reviewer at each place, shape (places, reviewers).
    """

    places: list[int]
    names: list[int]
    chances: NDArray[np.float64]


@dataclass
class Row:
    """The tokens that a seat reads and writes in an episode, and what is learned of them."""

    tokens: list[int]
    learned: list[bool] = field(default_factory=list)
    """Whether a token is one of the seat's own turns."""
    soft: list[Soft] = field(default_factory=list)

    def add(self, tokens: Sequence[int], *, learned: bool) -> None:
        self.tokens = [*self.tokens, *tokens]
        self.learned += [learned] * len(tokens)


@dataclass(frozen=True)
class Dialect:
    """The tokens of the compact prompts and of the turns of `deaf-teacher`. A test compares rows with the game's."""

    reviewers: dict[str, int]
    papers: dict[str, int]
    lines: dict[str, list[int]]
    """Beginning of a line of a proposal, by paper."""
    digits: list[int]
    pieces: dict[str, list[int]]

    @classmethod
    def of(cls, tokenizer: Any) -> Dialect:
        def ids(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        def one(text: str) -> int:
            (token,) = ids(text)
            return token

        return cls(
            reviewers={name: one(f" {name.split()[0]}") for name in REVIEWERS[:FULL]},
            papers={title: one(f" {title.split(':')[0]}") for title in PAPERS[:FULL]},
            lines={title: ids(f"\n{title.split(':')[0]}:") for title in PAPERS[:FULL]},
            digits=[one(f" {digit}") for digit in range(10)],
            pieces={
                "opening": ids("<|im_start|>system\nmatch<|im_end|>\n<|im_start|>user\nsee"),
                "reply": ids("<|im_end|>\n<|im_start|>assistant\n"),
                "end": ids("<|im_end|>"),
                "user": ids("\n<|im_start|>user\n"),
                "further": ids("\n"),
                "again": ids("again"),
                "message": ids("[message]"),
                "none": ids(" none"),
                "propose": ids("[propose] Proposal:"),
                "accept": ids("[accept]"),
                "reject": ids("[reject]"),
            },
        )

    def cells(self, state: MatchingState, seat: int, told: NDArray[np.bool_] | None = None) -> list[int]:
        """Returns the tokens of the cells that a seat sees, or of those of them that it tells."""
        return [
            token
            for reviewer, row in zip(state.reviewers, enumerate(state.view(seat)), strict=True)
            for column, (paper, digit) in enumerate(zip(state.papers, row[1], strict=True))
            if digit is not None and (told is None or told[row[0], column])
            for token in (self.reviewers[reviewer], self.papers[paper], self.digits[digit])
        ]

    def proposal(self, state: MatchingState, plan: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the tokens of a proposal, and the place of each name in them.

        Args:
            state: The state.
            plan: Reviewer of each paper.
        """
        tokens, places = [*self.pieces["propose"]], []
        for number, (paper, reviewer) in enumerate(zip(state.papers, plan, strict=True)):
            tokens += self.lines[paper] if number else [self.papers[paper], *self.lines[paper][2:]]
            places.append(len(tokens))
            tokens.append(self.reviewers[state.reviewers[reviewer]])
        return tokens, places


class Episode:
    """Plays an episode of `deaf-teacher` on a state, and writes the rows of both seats.

    Attributes:
        mute: Whether each message is heard without its words.
        fixed: Whether the protocol is fixed: after one message of seat 0 the first proposal of seat 1 is the outcome.
    """

    def __init__(
        self,
        dialect: Dialect,
        state: MatchingState,
        rng: np.random.Generator,
        *,
        mute: bool = False,
        fixed: bool = False,
    ) -> None:
        self.dialect, self.state, self.rng, self.mute, self.fixed = dialect, state, rng, mute, fixed
        self.rows = [Row([]), Row([])]
        for seat, row in enumerate(self.rows):
            row.add(dialect.pieces["opening"] + dialect.cells(state, seat), learned=False)
        self.reading = [True, True]
        """For each seat, True if its row ends with something that it read."""

    def play(self, softness: float, *, talks: bool) -> list[Row]:
        """Returns the rows: those of both seats, or without talk that of seat 0, which proposes at once.

        Args:
            softness: Difference in reward that makes a choice e times as likely.
            talks: Whether seat 0 tells its cells, and seat 1 sometimes too, before a proposal is made.
        """
        pieces, told = self.dialect.pieces, [False, False]
        seat, turn, offered = 0, 0, False
        while True:
            if offered and not (talks and turn < LAST_REJECTED and self.rng.random() < REJECTS):
                self._say(seat, pieces["accept"])
                return self.rows if talks else self.rows[:1]
            if offered:
                self._say(seat, pieces["reject"])
                self._hear(1 - seat, pieces["reject"])
                self._hear(seat, pieces["again"])
                offered = False
            elif talks and not told[seat] and turn < (1 if self.fixed else 2) and self._answers(turn):
                share = 0.5 if self.rng.random() < PARTLY else 1.0
                cells = self.dialect.cells(self.state, seat, self.rng.random(self.state.table.shape) < share)
                self._say(seat, pieces["message"] + (cells or pieces["none"]))
                self._hear(1 - seat, pieces["message"] + ([] if self.mute else cells or pieces["none"]))
                told[seat] = True
                seat = 1 - seat
            else:
                self._propose(seat, softness)
                if self.fixed:
                    return self.rows
                offered = True
                seat = 1 - seat
            turn += 1

    def _answers(self, turn: int) -> bool:
        return turn == 0 or self.rng.random() < ANSWERS

    def _propose(self, seat: int, softness: float) -> None:
        values = np.where(self.state.masks[seat], self.state.table, RULES.mean_score) / self.state.best
        plan, chances = soft_plan(values, softness, self.rng)
        tokens, places = self.dialect.proposal(self.state, plan)
        begins = len(self.rows[seat].tokens) + len(self.dialect.pieces["reply"])
        names = [self.dialect.reviewers[name] for name in self.state.reviewers]
        self.rows[seat].soft.append(Soft([begins + place for place in places], names, chances))
        self._say(seat, tokens)
        if not self.fixed:
            self._hear(1 - seat, tokens)

    def _say(self, seat: int, tokens: Sequence[int]) -> None:
        self.rows[seat].add(self.dialect.pieces["reply"], learned=False)
        self.rows[seat].add([*tokens, *self.dialect.pieces["end"]], learned=True)
        self.reading[seat] = False

    def _hear(self, seat: int, tokens: Sequence[int]) -> None:
        before = self.dialect.pieces["further" if self.reading[seat] else "user"]
        self.rows[seat].add([*before, *tokens], learned=False)
        self.reading[seat] = True


def soft_plan(
    values: NDArray[np.float64], softness: float, rng: np.random.Generator
) -> tuple[list[int], NDArray[np.float64]]:
    """Returns a plan that is drawn paper by paper, and the chances of the reviewers of each paper.

    A reviewer's chance is in proportion to exp(value of the best plan that begins so / softness).

    Args:
        values: Value of each pair, shape (reviewers, papers).
        softness: Difference in value that makes a choice e times as likely.
        rng: Generator of the choices.

    Returns:
        The reviewer of each paper, and the chances, shape (papers, reviewers).
    """
    left, plan, chances = [*range(len(values))], list[int](), np.zeros_like(values)
    for paper in range(len(values)):
        reached = np.array([values[one, paper] for one in left])
        for number in range(len(left)):
            rest = values[left[:number] + left[number + 1 :], paper + 1 :]
            reached[number] += rest[linear_sum_assignment(rest, maximize=True)].sum()
        odds = np.exp((reached - reached.max()) / softness)
        chances[paper, left] = odds / odds.sum()
        plan.append(left.pop(int(rng.choice(len(left), p=odds / odds.sum()))))
    return plan, chances


def draw_state(size: int, rng: np.random.Generator) -> RoundedState:
    """Returns a state of DialOp's rules without the hard filter; a smaller board has some of the names."""
    state = sample_state(RULES.model_copy(update={"size": size}), rng)
    if size < FULL:
        papers, reviewers = (rng.choice(names[:FULL], size, replace=False).tolist() for names in (PAPERS, REVIEWERS))
        state = replace(state, papers=tuple(papers), reviewers=tuple(reviewers))
    return RoundedState.of(state)
