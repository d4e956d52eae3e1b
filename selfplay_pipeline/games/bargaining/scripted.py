"""Scripted players: pure functions of one player's knowledge, which is its own values and the dialogue so far.

Their messages list values in one fixed form (`[message] book 1 hat 2 ball 0`), which `text.told_values` reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.bargaining.rules import BargainingConfig, Triple, dot, possible_values, rest, shares
from selfplay_pipeline.games.bargaining.session import BargainingSession
from selfplay_pipeline.games.bargaining.text import format_items, format_proposal, told_values
from selfplay_pipeline.games.base import SAME_SCORE, ScriptedPlayer
from selfplay_pipeline.games.tagged_session import SeatView


@dataclass(frozen=True)
class PlayerView(SeatView):
    """Knowledge of one player at the beginning of its turn.

    Attributes:
        values: Value of one item of each type to the player.
        pending: The player's own share in the partner's proposal that waits for an answer; None without one.
        rules: Rules of the game.
    """

    counts: Triple
    values: Triple
    pending: Triple | None = None
    rules: BargainingConfig = field(default_factory=BargainingConfig)


def player_view(session: BargainingSession, seat: int) -> PlayerView:
    """Returns the knowledge of `seat` in a running episode."""
    return PlayerView(
        seat=seat,
        counts=session.state.counts,
        values=session.state.values[seat],
        history=session.known_history(seat),
        pending=None if session.pending is None else session.pending[seat],
        due=session.due,
        rules=session.config,
    )


NOTHING = "[message] none"
"""Message that tells no value."""


def tell(view: PlayerView) -> str:
    """Returns the message that tells the player's values."""
    return "[message] " + format_items(view.values).replace(",", "")


def heard_values(view: PlayerView) -> dict[int, int]:
    """Returns the values that the partner has told so far, by item type."""
    heard: dict[int, int] = {}
    for text in view.said(1 - view.seat):
        if text.startswith("[message]"):
            heard.update(told_values(text))
    return heard


def partners_values(view: PlayerView) -> NDArray[np.float64]:
    """Returns the partner's expected values, shape (item types,), given the rules and its messages, which are taken as
    true.
    """
    heard = heard_values(view)
    possible = possible_values(view.counts, view.values)
    agreeing = [values for values in possible if all(values[item] == told for item, told in heard.items())]
    expected = np.asarray(np.mean(agreeing or possible, axis=0), np.float64)
    for item, told in heard.items():
        expected[item] = told
    return expected


def best_share(view: PlayerView, goal: Callable[[float, float], tuple[float, float]]) -> Triple:
    """Returns the share that maximises `goal`, a function of a split's values to the player and to the partner."""
    partners = partners_values(view)

    def reached(share: Triple) -> tuple[float, float]:
        # Rounded, so that equal means of the partner's values compare as equal.
        return goal(dot(share, view.values), round(float(partners @ rest(view.counts, share)), 6))

    return max(shares(view.counts), key=reached)


def own_first(own: float, other: float) -> tuple[float, float]:
    return own, other


def equal_first(own: float, other: float) -> tuple[float, float]:
    return -abs(own - other), own + other


def sum_first(own: float, other: float) -> tuple[float, float]:
    return own + other, -abs(own - other)


@dataclass(frozen=True)
class Random:
    """Proposes a random split at once and accepts any proposal."""

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        if view.says(False):
            return NOTHING
        choices = shares(view.counts)
        return format_proposal(choices[rng.integers(len(choices))])


@dataclass(frozen=True)
class Greedy:
    """Proposes to keep every item that it values, and accepts only a split that gives it all of these.

    Two greedy players never agree.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.says(False):
            return NOTHING
        if view.pending is None:
            return format_proposal(best_share(view, own_first))
        everything = dot(view.pending, view.values) == dot(view.counts, view.values)
        return "[accept]" if everything else "[reject]"


@dataclass(frozen=True)
class Fair:
    """Proposes the split that it expects to be most equal, and sends no message.

    It rejects one proposal that gives it less than half of the total value, and accepts any other.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.says(False):
            return NOTHING
        if view.pending is None:
            return format_proposal(best_share(view, equal_first))
        half = 2 * dot(view.pending, view.values) >= dot(view.counts, view.values)
        return "[accept]" if half or "[reject]" in view.said(view.seat) else "[reject]"


@dataclass(frozen=True)
class Sharing:
    """Tells its values, then proposes the split with the best expected sum; among equal sums, the most equal split.

    It accepts a proposal that reaches this sum. If it has heard no values, it accepts a proposal after having told its
    own values; otherwise it rejects once and tells them.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]" if self.agrees(view, view.pending, rng) else "[reject]"
        spoke = any(text.startswith("[message]") for text in view.said(view.seat))
        if view.says(not spoke and not heard_values(view)):
            return tell(view)
        return format_proposal(best_share(view, sum_first))

    def agrees(self, view: PlayerView, offered: Triple, rng: np.random.Generator) -> bool:
        """Whether the player accepts a proposal in which its own share is `offered`."""
        mine = view.said(view.seat)
        if "[reject]" in mine:
            return True
        if not heard_values(view):
            return any(text.startswith("[message]") for text in mine)
        plan, partners = best_share(view, sum_first), partners_values(view)
        reached, most = (dot(own, view.values) + partners @ rest(view.counts, own) for own in (offered, plan))
        return bool(reached >= most - SAME_SCORE)


SCRIPTED: Mapping[str, ScriptedPlayer] = {
    "random": Random(),
    "greedy": Greedy(),
    "fair": Fair(),
    "sharing": Sharing(),
}
