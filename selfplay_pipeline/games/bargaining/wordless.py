"""Plays without words (see `games/silence.py`): their expected rewards, and scripted players that play them.

All players play optimally given what they know. Expectations are exact sums over the partner's possible values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.games.bargaining.rules import (
    BargainingConfig,
    BargainingState,
    Triple,
    mean_gains,
    possible_values,
)
from selfplay_pipeline.games.bargaining.scripted import NOTHING, PlayerView
from selfplay_pipeline.games.bargaining.text import format_proposal, parse_share
from selfplay_pipeline.games.base import ScriptedPlayer
from selfplay_pipeline.games.silence import COUNTER, PASS, SILENCE, THRESHOLDS, LineName, Rewards
from selfplay_pipeline.games.tags import ActionKind, tagged


def wordless_rewards(states: Sequence[BargainingState], config: BargainingConfig) -> dict[LineName, Rewards]:
    """Returns the reward of each play without words on each state, averaged over both players and over both choices of
    the first seat.

    Shapes are (states,), and (states, thresholds) for `pass`.
    """
    found: dict[LineName, list[list[Any]]] = {SILENCE: [], PASS: [], COUNTER: []}
    for state in states:
        gains, counts = mean_gains(config, state.counts, state.values), np.array(state.counts)
        for seat, (own, other) in enumerate(zip(state.values, state.values[::-1], strict=True)):

            def reward(plan: Plan, gains: NDArray[np.float64] = gains, counts: NDArray[np.int64] = counts) -> float:
                return float(np.where(plan, *gains) @ counts)

            first = silent_plan(config, state.counts, own, seat)
            found[SILENCE].append([reward(first.plan)])
            found[COUNTER].append([reward(counter_plan(config, state.counts, other, 1 - seat, first.plan))])
            found[PASS].append(
                [
                    reward(first.plan)
                    if first.promise >= threshold
                    else reward(plan_after_pass(config, state.counts, other, 1 - seat, threshold))
                    for threshold in THRESHOLDS.tolist()
                ]
            )
    means = {name: np.reshape(rewards, (len(states), 2, -1)).mean(axis=1) for name, rewards in found.items()}
    return {name: mean if name == PASS else mean[:, 0] for name, mean in means.items()}


Plan = tuple[bool, ...]
"""For each item type, whether player 0 gets all items of it."""


@dataclass(frozen=True)
class Promise:
    """Best proposal given one player's view, and its expected reward."""

    plan: Plan
    promise: float


@cache
def silent_plan(config: BargainingConfig, counts: Triple, own: Triple, seat: int) -> Promise:
    """Returns the best proposal of a player that knows only its own values and their distribution."""
    return _best_plan(config, counts, own, seat, possible_values(counts, own))


@cache
def counter_plan(config: BargainingConfig, counts: Triple, own: Triple, seat: int, offered: Plan) -> Plan:
    """Returns the best proposal of a player whose partner offered its silent plan."""
    others = possible_values(counts, own)
    agreeing = [other for other in others if silent_plan(config, counts, other, 1 - seat).plan == offered]
    return _best_plan(config, counts, own, seat, agreeing or others).plan


@cache
def plan_after_pass(config: BargainingConfig, counts: Triple, own: Triple, seat: int, threshold: float) -> Plan:
    """Returns the best proposal of a player whose partner passed because its own silent plan promised too little."""
    others = possible_values(counts, own)
    low = [other for other in others if silent_plan(config, counts, other, 1 - seat).promise < threshold]
    return _best_plan(config, counts, own, seat, low or others).plan


def _best_plan(config: BargainingConfig, counts: Triple, own: Triple, seat: int, others: Sequence[Triple]) -> Promise:
    """Returns the best proposal if all these values of the partner are equally likely.

    Rewards are linear in the items, so all items of a type go to the player for whom they add more expected reward.
    """
    pairs = [(own, other) if seat == 0 else (other, own) for other in others]
    to_one, to_other = np.mean([mean_gains(config, counts, pair) for pair in pairs], axis=0)
    return Promise(tuple((to_one >= to_other).tolist()), float(np.maximum(to_one, to_other) @ np.array(counts)))


@dataclass(frozen=True)
class Passing:
    """Proposes the best split given its own values if its expected reward is high enough, else passes with an empty
    message.

    After its partner's pass it proposes in any case. It accepts any proposal.

    Attributes:
        threshold: Smallest expected reward with which it proposes; the default is the best one for the cooperative
            reward.
    """

    threshold: float = 0.95

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        own = silent_plan(view.rules, view.counts, view.values, view.seat)
        passed = bool(view.said(1 - view.seat))
        if view.says(not passed and own.promise < self.threshold):
            return NOTHING
        if passed:
            return _propose(view, plan_after_pass(view.rules, view.counts, view.values, view.seat, self.threshold))
        return _propose(view, own.plan)


@dataclass(frozen=True)
class Countering:
    """Proposes the best split given its own values, and answers its partner's proposal with a better one.

    The answer is the best split if the partner's values are such that the proposal is the partner's best one. It
    accepts a proposal that is as good as its answer, and any answer to its own proposal.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        plan = silent_plan(view.rules, view.counts, view.values, view.seat).plan
        offers = [text for text in view.said(1 - view.seat) if tagged(text)[0] is ActionKind.PROPOSE]
        proposed = any(tagged(text)[0] is ActionKind.PROPOSE for text in view.said(view.seat))
        if offers and not proposed:
            mine = parse_share(tagged(offers[-1])[1], view.counts)
            offered = tuple((own == count) == (view.seat == 0) for own, count in zip(mine, view.counts, strict=True))
            plan = counter_plan(view.rules, view.counts, view.values, view.seat, offered)
            if view.pending is not None and mine != _share(view, plan):
                return "[reject]"
        if view.pending is not None:
            return "[accept]"
        return NOTHING if view.says(False) else _propose(view, plan)


def _share(view: PlayerView, plan: Plan) -> Triple:
    book, hat, ball = (count * (to_one == (view.seat == 0)) for count, to_one in zip(view.counts, plan, strict=True))
    return book, hat, ball


def _propose(view: PlayerView, plan: Plan) -> str:
    return format_proposal(_share(view, plan))


WORDLESS: Mapping[str, ScriptedPlayer] = {"proposing": Passing(0.0), "passing": Passing(), "countering": Countering()}
