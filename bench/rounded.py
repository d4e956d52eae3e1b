"""DialOp's boards as a tiny model can read them: a player sees its numbers as digits, 9 for the largest that it sees.

States, rules and rewards are those of the game `matching`, whose states these are. Players see less than people do, and
messages tell digits, so that rewards can be compared with those of people and with the lines of play without words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self

import numpy as np

from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.scripted import PlayerView
from selfplay_pipeline.games.matching.session import MatchingSession
from selfplay_pipeline.games.silence import LineName, Rewards

TOP = 9.99
"""Digit that the largest score of a view is scaled to, before the digits behind the point are cut."""


class RoundedConfig(MatchingConfig):
    """Board and limits, as for `matching`."""

    name: Literal["rounded"] = "rounded"  # type: ignore[assignment]
    """Name of the game."""


@dataclass(frozen=True)
class RoundedState(MatchingState):
    """A state whose `scales` make digits of the scores that a player sees.

    Attributes:
        secret: The scales of `matching`.
    """

    secret: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, state: MatchingState) -> Self:
        first, second = (TOP / max(1, int((state.table * mask).max())) for mask in state.masks)
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
        """Returns a state with the same numbers in the seat's view, from which its digits are made."""
        return RoundedState.of(super().redraw(_plain(state), seat, rng))

    def references(self, states: Sequence[MatchingState]) -> dict[str, list[float]]:
        return super().references([_plain(state) for state in states])

    def wordless_rewards(self, states: Sequence[MatchingState], rng: np.random.Generator) -> dict[LineName, Rewards]:
        return {**super().wordless_rewards([_plain(state) for state in states], rng)}


def _plain(state: MatchingState) -> MatchingState:
    return state.plain if isinstance(state, RoundedState) else state


GAME = Rounded
