"""DialOp's boards as a tiny model can read them: a player sees its numbers as digits, 9 for the largest that it sees.

States, rules and rewards are those of the game `matching`. Digits put both players on nearly one scale, so that this is
an easier game than that of people, who have to guess each other's scale: a player that takes told numbers as if they
were of its own scale reaches 0.996 of the best reward on the people's states with digits, and 0.932 with their numbers.

Figures of lost reward count a told digit as the exact score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Altered, HumanEpisode, Turn
from selfplay_pipeline.games.matching.altered import altered
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.redraw import NO_BOARD, boards
from selfplay_pipeline.games.matching.rules import SCALE_MIN, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.scripted import PlayerView
from selfplay_pipeline.games.matching.session import MatchingSession
from selfplay_pipeline.games.matching.wordless_players import WORDLESS
from selfplay_pipeline.games.silence import LineName, Lines, Rewards

TOP = 9.99
"""Digit that the largest score of a view is scaled to, before the digits behind the point are cut."""


class RoundedConfig(MatchingConfig):
    """Board and limits, as for `matching`."""

    name: Literal["rounded"] = "rounded"  # type: ignore[assignment]
    """Name of the game."""
    score_power: Literal[1] = 1
    """Skew of the scores: resampling takes them for uniform."""
    visibility: Literal["independent"] = "independent"
    """Rule of visibility."""


@dataclass(frozen=True)
class RoundedState(MatchingState):
    """A state whose `scales` make digits of the scores that a player sees.

    Attributes:
        secret: The scales of `matching`.
    """

    secret: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, state: MatchingState) -> Self:
        first, second = (TOP / _largest(state, seat) for seat in (0, 1))
        return cls(**_parts(state) | {"scales": (first, second)}, secret=state.scales)

    @property
    def plain(self) -> MatchingState:
        """The state as `matching` has it."""
        return MatchingState(**_parts(self) | {"scales": self.secret})


def _parts(state: MatchingState) -> dict[str, Any]:
    return {one.name: getattr(state, one.name) for one in fields(MatchingState)}


class Rounded(MatchingGame):
    """DialOp's boards with digits."""

    name = "rounded"
    settings = RoundedConfig
    players = {name: player for name, player in MatchingGame.players.items() if name not in WORDLESS}
    """Scripted players; those of the silence lines read numbers, not digits."""

    @cached_property
    def wordless(self) -> Lines:
        """The lines of `matching`. Digits say little that its numbers do not, so that they nearly bound play without
        words here."""
        own = self.config.model_dump(exclude={"name", "path"})
        return MatchingGame(MatchingConfig(**own)).wordless

    def sample_state(self, rng: np.random.Generator) -> RoundedState:
        return RoundedState.of(super().sample_state(rng))

    def state_to_json(self, state: MatchingState) -> dict[str, Any]:
        return super().state_to_json(_plain(state))

    def state_from_json(self, data: Any) -> RoundedState:
        return RoundedState.of(super().state_from_json(data))

    def check_fits(self, state: MatchingState) -> None:
        super().check_fits(_plain(state))

    def view(self, session: MatchingSession, seat: int) -> PlayerView:
        """Returns the view of a scripted player, which takes a digit for as many tenths of the largest score."""
        scale = TOP / self.config.max_score
        return replace(super().view(session, seat), scales=(scale, scale))

    def redraw(self, state: MatchingState, seat: int, rng: np.random.Generator) -> RoundedState:
        """Returns a state drawn from the rules given the digits that a seat sees.

        Raises:
            UserError: The configuration keeps states that fail the hard filter, or cannot have drawn this one.
        """
        config, digits = self.config, np.array(state.view(seat))[state.masks[seat]].astype(int)
        for board in boards(state, seat, config, rng, lambda count: scores_of(digits, config.max_score, count, rng)):
            first, second = rng.uniform(SCALE_MIN, config.scale_max, 2).tolist()
            parts = {"table": board.table, "masks": board.masks, "scales": (first, second), "best": board.best}
            return RoundedState.of(MatchingState(**_parts(state) | parts))
        raise UserError(NO_BOARD.format(seat=seat))

    def keep_named(self, state: MatchingState, seat: int, text: str) -> str:
        """Returns a message about the same cells; those that the author does not see are told as 9 at most."""
        return super().keep_named(replace(state, table=np.minimum(state.table, _largest(state, seat))), seat, text)

    def alter(self, state: MatchingState, turns: Sequence[Turn], kind: str, rng: np.random.Generator) -> Altered | None:
        """Returns an altered message, whose scores are at most the largest that its author sees."""
        largest = _largest(state, turns[-1].seat)
        return altered(state, turns, kind, self.config.model_copy(update={"max_score": largest}), rng)

    def human_episodes(self) -> Iterator[HumanEpisode]:
        """Returns no episode, since people told numbers that are no digits; `known_lines` has their reward."""
        return iter(())

    def references(self, states: Sequence[MatchingState]) -> dict[str, list[float]]:
        return super().references([_plain(state) for state in states])

    def wordless_rewards(self, states: Sequence[MatchingState], rng: np.random.Generator) -> dict[LineName, Rewards]:
        return {**super().wordless_rewards([_plain(state) for state in states], rng)}


def scores_of(digits: NDArray[np.int64], largest: int, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Returns uniform scores given the digits that they are seen as, shape (count, cells).

    Args:
        digits: Digits of the cells.
        largest: Largest score of the rules.
    """
    if not digits.any():
        return np.zeros((count, len(digits)), np.int64)
    scores = np.arange(largest + 1)
    tops = np.arange(1, largest + 1)
    shown = (scores * (TOP / tops[:, None])).astype(int)
    fits = (shown[:, :, None] == digits) & (scores[:, None] <= tops[:, None, None])  # (tops, scores, cells)
    ways = fits.sum(axis=1).astype(float)  # (tops, cells)
    nines = digits == int(TOP)
    with np.errstate(divide="ignore"):
        others = np.log(ways[:, ~nines]).sum(axis=1)
        with_top = np.exp(others) * (ways[:, nines].prod(axis=1) - (ways[:, nines] - 1).prod(axis=1))
    drawn = rng.choice(len(tops), count, p=with_top / with_top.sum())
    lowest, ways = fits.argmax(axis=1)[drawn], ways[drawn]
    found: NDArray[np.int64] = lowest + (rng.random(ways.shape) * ways).astype(int)
    while (lacks := found.max(axis=1) != tops[drawn]).any():
        found[lacks] = lowest[lacks] + (rng.random(ways[lacks].shape) * ways[lacks]).astype(int)
    return found


def _largest(state: MatchingState, seat: int) -> int:
    """Returns the largest score that a seat sees, but at least 1."""
    return max(1, int((state.table * state.masks[seat]).max()))


def _plain(state: MatchingState) -> MatchingState:
    return state.plain if isinstance(state, RoundedState) else state


GAME = Rounded
