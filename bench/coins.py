"""Baselines for asking: a scripted coin with as many questions, and placebo trainings, which can learn nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

import numpy as np
from pydantic import BaseModel
from scipy import special

from selfplay_pipeline.games.base import Game, ScriptedPlayer, State
from selfplay_pipeline.generate.players import Scripted, Seat, SeatedScript
from selfplay_pipeline.generate.records import SeatRecord
from selfplay_pipeline.generate.run import Sitting
from selfplay_pipeline.metrics.bootstrap import Totals

CHANCES = (0.0, 0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
"""The coins' chances to ask; the last coin asks for every fact that it does not see."""


@dataclass(frozen=True)
class Coin:
    """A scripted player that the game does not know by name."""

    script: ScriptedPlayer

    @property
    def record(self) -> SeatRecord:
        return SeatRecord(kind="script", name="coin")

    def sit(self, seat: Seat) -> SeatedScript:
        return SeatedScript(self.script, seat.view, np.random.default_rng(seat.seed))


def play_coin(game: Game, states: Sequence[State], script: ScriptedPlayer, partner: str, episodes: int) -> Totals:
    """Returns reward and questions of a script in seat 0, for each state summed over its episodes."""
    reward, questions = np.zeros(len(states)), np.zeros(len(states))
    for number, state in enumerate(states):
        for episode in range(episodes):
            sitting = Sitting(game, state, [Coin(script), Scripted(partner)], f"coin-{number}", (0, number, episode))
            sitting.episode.play_out()
            reward[number] += sitting.episode.session.outcome().rewards[0]
            questions[number] += game.asking(state, sitting.episode.turns, 0).questions
    played = np.full(len(states), float(episodes))
    return Totals.of({"reward": (reward, played), "questions": (questions, played)})


def terms_above_coin(found: Totals, coins: Mapping[float, Totals]) -> list[tuple[float, Totals]]:
    """Returns the reward minus that of a coin which asks as often, on the same states, as terms of a contrast.

    Between two coins their line is interpolated at the observed mean number of questions; its own error is left out. A
    player that asks more than the coin that asks for all is compared with that coin.

    Args:
        found: Evaluation of a player.
        coins: Evaluations of coins by their chance to ask, from 0 on.
    """
    asked = {chance: _questions(totals) for chance, totals in sorted(coins.items())}
    for low, high in pairwise(asked):
        if asked[low] <= _questions(found) <= asked[high]:
            share = (_questions(found) - asked[low]) / (asked[high] - asked[low])
            return [(1, found), (share - 1, coins[low]), (-share, coins[high])]
    return [(1, found), (-1, coins[max(coins)])]


def _questions(totals: Totals) -> float:
    column = totals.names.index("questions")
    return float(totals.numerators[:, column].sum() / totals.denominators[:, column].sum())


class AgainstPlacebo(BaseModel):
    """Comparison of a slope with placebo trainings, which can learn nothing.

    Attributes:
        low: Lower end of the 95 % prediction interval for one more placebo's slope.
        high: Upper end of that interval.
    """

    verdict: Literal["rose", "fell", "no more than a placebo", "cannot be told"]
    slope: float | None
    low: float | None
    high: float | None

    def __str__(self) -> str:
        if self.slope is None:
            return f"{self.verdict}: no slope"
        if self.low is None or self.high is None:
            return f"{self.verdict}: slope {self.slope:+.3f}, and fewer than two placebos to compare it with"
        return f"{self.verdict}: slope {self.slope:+.3f}, a further placebo's {self.low:+.3f} to {self.high:+.3f}"


def against_placebo(slope: float | None, placebos: Sequence[float]) -> AgainstPlacebo:
    """Compare a slope with those of placebo trainings by the 95 % prediction interval of one more of them.

    The interval is mean ± t · s · √(1 + 1/n) with n - 1 degrees of freedom. It includes the drift of a training, which
    the test over the episodes of one run cannot see.
    """
    count = len(placebos)
    if slope is None or count < 2:
        return AgainstPlacebo(verdict="cannot be told", slope=slope, low=None, high=None)
    margin = float(special.stdtrit(count - 1, 0.975)) * stdev(placebos) * (1 + 1 / count) ** 0.5
    low, high = fmean(placebos) - margin, fmean(placebos) + margin
    verdict: Literal["rose", "fell", "no more than a placebo"] = "no more than a placebo"
    if not low <= slope <= high:
        verdict = "rose" if slope > high else "fell"
    return AgainstPlacebo(verdict=verdict, slope=slope, low=low, high=high)
