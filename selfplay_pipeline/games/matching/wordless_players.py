"""Scripted players of the plays without words (see `games/silence.py`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from selfplay_pipeline.games.base import ScriptedPlayer
from selfplay_pipeline.games.matching.proposals import parse_action
from selfplay_pipeline.games.matching.rules import Matching, MatchingState, best_matching
from selfplay_pipeline.games.matching.scripted import PlayerView, estimate, propose, tell
from selfplay_pipeline.games.matching.wordless import (
    Plans,
    Posterior,
    answers,
    best_plans,
    counter_draws,
    draws_for,
    has_counter,
    own_view_plans,
    values_of,
)
from selfplay_pipeline.games.tags import ActionKind, tagged

CHAINS = 40
"""Number of chains in which a player draws states that agree with its view."""


@dataclass(frozen=True)
class Passing:
    """Proposes the best plan given its own view if its expected reward is high enough, else passes with an empty
    message.

    After its partner's pass it proposes in any case. It accepts any proposal.

    Attributes:
        threshold: Smallest expected reward with which it proposes; the default is the best one on honest 3×3 states.
            With 0 it proposes at once, which is the play of the silence line.
    """

    threshold: float = 0.85

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        if view.pending is not None:
            return "[accept]"
        steps = steps_for(draws_for(view.rules))
        shares = chains_of(view, rng).mean_shares(steps).mean(axis=0, keepdims=True)
        plans = best_plans(shares)
        if view.says(not view.said(1 - view.seat) and values_of(shares, plans)[0] < self.threshold):
            return tell(view, {})
        return propose(view, matching(plans[0]))


@dataclass(frozen=True)
class Countering:
    """Proposes its own-view plan, and answers its partner's proposal with a better one.

    In an own-view plan a cell that the player does not see counts as the mean. The answer is the best plan if the state
    is one in which the proposal is the partner's own-view plan. The player accepts a proposal that is as good as
    its answer, and any answer to its own proposal. If `has_counter` is false, it accepts any proposal.
    """

    def act(self, view: PlayerView, rng: np.random.Generator) -> str:
        proposed = any(tagged(text)[0] is ActionKind.PROPOSE for text in view.said(view.seat))
        offers = [text for text in view.said(1 - view.seat) if tagged(text)[0] is ActionKind.PROPOSE]
        counters = bool(offers) and not proposed and has_counter(view.rules)
        if view.pending is not None and not counters:
            return "[accept]"
        if view.says(False):
            return tell(view, {})
        if not counters:
            return propose(view, own_view_plan(view))
        action = parse_action(offers[-1], view.papers, view.reviewers)
        assert action.proposal is not None
        offered = np.array([[paper for _, paper in sorted(action.proposal)]])
        draws = counter_draws(draws_for(view.rules), view.rules)
        told = chains_of(view, rng).shares_told_by(np.repeat(offered, CHAINS, axis=0), steps_for(draws))
        plans = answers(told.sum(axis=0, keepdims=True), offered)
        if view.pending is not None:
            return "[accept]" if (plans == offered).all() else "[reject]"
        return propose(view, matching(plans[0]))


def own_view_plan(view: PlayerView) -> Matching:
    """Returns the best plan if unseen cells count as the mean; ties are broken as the partner expects."""
    if not has_counter(view.rules):
        return best_matching(estimate(view, {}))[0]
    state = as_state(view)
    return matching(own_view_plans(state.table[None], state.masks[view.seat], view.rules)[0])


def as_state(view: PlayerView) -> MatchingState:
    """Returns a state in which a player has this view; unseen cells hold 0."""
    table = np.array([[score or 0 for score in row] for row in view.table])
    seen = np.array([[score is not None for score in row] for row in view.table])
    masks = (seen, ~seen) if view.seat == 0 else (~seen, seen)
    return MatchingState(table, masks, (1.0, 1.0), 1, view.papers, view.reviewers)


def chains_of(view: PlayerView, rng: np.random.Generator) -> Posterior:
    """Returns chains of states that agree with a player's view."""
    return Posterior([(as_state(view), view.seat)] * CHAINS, view.rules, rng)


def steps_for(draws: int) -> int:
    """Returns the number of steps in which the chains draw as many states as two chains of `draws` steps."""
    return -(-2 * draws // CHAINS)


def matching(plan: Plans) -> Matching:
    """Returns the (reviewer, paper) pairs of a plan."""
    return tuple(enumerate(plan.tolist()))


WORDLESS: Mapping[str, ScriptedPlayer] = {"proposing": Passing(0.0), "passing": Passing(), "countering": Countering()}
