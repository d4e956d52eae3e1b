"""Lines of play without words: the rewards of players that know only their own views, the rules and proposals.

A plan's expected reward is linear in the cells, E[sum of its scores / best] = sum over its cells of E[score / best]. So
the best silent plan is the assignment that maximises the posterior mean of table / best. That mean is taken over states
that agree with the view: scores that the player does not see, the partner's mask and the player's scale are drawn as
the configuration draws them. With the hard filter, the first state is redrawn until it passes. From there an exact
Metropolis chain continues: each step redraws a part of the hidden values, and keeps them if the state still passes.

`silence` is the best reward of one fixed proposer who hears nothing. Passes and counter-proposals also carry
information: `pass` and `counter` are the rewards of two plays that make use of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import factorial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.rules import SCALE_MIN, VISIBLE, MatchingConfig, MatchingState
from selfplay_pipeline.games.matching.states import draw_scores
from selfplay_pipeline.games.silence import COUNTER, PASS, SILENCE, THRESHOLDS, LineName, Rewards

DRAWS = 500
"""Number of states drawn for each view, in each of two chains, without the hard filter."""
DRAWS_PER_CELL = 300
"""Number of states drawn for each view in each chain, per cell of the board, with the hard filter.

On 8×8 boards, doubling the number to this value raised the reward of `silence` by 0.002.
"""
REDRAWN = 6
"""Mean number of cells redrawn in a step; of 1 to 13, the most accurate on 3×3 and 8×8 boards.
"""
TRIES = 1_000
"""Minimum number of states drawn at a time in the search for the chains' first states."""
MAX_ROUNDS = 2_000
"""Maximum number of rounds in the search for the chains' first states."""
ENUMERATED = 5
"""Largest board size for which the values of all plans are listed; larger boards are solved with the Hungarian method.
"""
MATCHES = 100
"""Minimum mean number of draws per view and proposal, in each of two chains."""
TIE = 1e-9
"""Difference in value below which plans are equally good."""

Tables = NDArray[np.float64]
Masks = NDArray[np.bool_]
Plans = NDArray[np.intp]
"""Column of each row."""


def draws_for(config: MatchingConfig) -> int:
    """Returns a sufficient number of draws for choosing a plan."""
    return DRAWS_PER_CELL * config.size**2 if config.hard_factor else DRAWS


def wordless_rewards(
    states: Sequence[MatchingState], config: MatchingConfig, rng: np.random.Generator, draws: int
) -> dict[LineName, Rewards]:
    """Returns the reward of each play without words on each state, mean over the seats that may be the proposer.

    If only one seat proposes (`visibility: one_sided`), `silence` is the only play. Shapes are (states,), and (states,
    thresholds) for `pass`. The plays are those of `games/silence.py`. Here the
    second player of `pass` plans by its own view alone. The first of `counter` counts each cell that it does not see as
    the mean score, and the line is computed only if `has_counter`.

    Each view has two independent chains. For `silence`, each chain chooses a plan, whose value is estimated by the
    other chain, since an estimate by the same draws would be too high. The plans of the other plays are valued by the
    true state. With few draws the plans, and so the rewards, are a little below the best.

    Raises:
        UserError: The configuration keeps some states that fail the filter, a case that is not computed.
    """
    if config.hard_factor and config.unfiltered_after:
        raise UserError("game.unfiltered_after: the silence line is unknown if some states are kept unfiltered; set 0")
    views = [(state, seat) for state in states for seat in config.proposers]
    true = np.array([state.table / state.best for state, _ in views]).reshape(-1, config.size, config.size)
    chains = Posterior(views * 2, config, rng)

    def by_state(values: Tables) -> Tables:
        return np.asarray(values.reshape(len(states), len(config.proposers), *values.shape[1:]).mean(axis=1))

    shares = chains.mean_shares(draws).reshape(2, *true.shape)
    silent = [values_of(one, best_plans(other)) for one, other in (shares, shares[::-1])]
    if len(config.proposers) == 1:
        return {SILENCE: by_state(np.mean(silent, axis=0))}
    mean = shares.mean(axis=0)
    plans = best_plans(mean)
    promised, reached = values_of(mean, plans), values_of(true, plans)
    partners_reached = reached.reshape(-1, 2)[:, ::-1].reshape(-1, 1)
    passing = np.where(promised[:, None] >= THRESHOLDS, reached[:, None], partners_reached)
    lines = {SILENCE: by_state(np.mean(silent, axis=0)), PASS: by_state(passing)}
    if has_counter(config):
        partners = np.array([state.masks[1 - seat] for state, seat in views]).reshape(true.shape)
        offered = own_view_plans(np.array([state.table for state, _ in views]).reshape(true.shape), partners, config)
        told = chains.shares_told_by(np.tile(offered, (2, 1)), counter_draws(draws, config)).reshape(2, *true.shape)
        lines[COUNTER] = by_state(values_of(true, answers(told.sum(axis=0), offered)))
    return lines


def answers(told: Tables, offered: Plans) -> Plans:
    """Returns the best plan given the information in each proposal; the proposal itself if it is as good."""
    plans = best_plans(told)
    better = values_of(told, plans) > values_of(told, offered) + TIE
    return np.asarray(np.where(better[:, None], plans, offered))


def counter_draws(draws: int, config: MatchingConfig) -> int:
    """Returns the number of draws for choosing an answer to a proposal; `draws` is the number for choosing a plan."""
    return max(draws, MATCHES * factorial(config.size))


def has_counter(config: MatchingConfig) -> bool:
    """Whether `counter` can be computed.

    It cannot on larger boards, where hardly any drawn state agrees with a proposal, with secret scales, and if only one
    player proposes.
    """
    return len(config.proposers) > 1 and config.size <= ENUMERATED and config.scale_max == SCALE_MIN


def own_view_plans(tables: NDArray[np.int64] | Tables, masks: Masks, config: MatchingConfig) -> Plans:
    """Returns the plan that is best on each view if unseen cells count as the mean; of equal plans, the first."""
    views = np.where(masks, tables, config.mean_score)
    return np.asarray(_every_plan(config.size)[every_value(views).argmax(axis=1)])


class Posterior:
    """Samples of states that agree with a player's view, from one Markov chain per view.

    Attributes:
        tables: Newest state of each chain, shape (chains, size, size).
        partners: Cells that the other player sees in the newest state.
        best: Value of the best plan in the newest state.
    """

    def __init__(
        self, views: Sequence[tuple[MatchingState, int]], config: MatchingConfig, rng: np.random.Generator
    ) -> None:
        """Draw the first state of each chain from the view of a seat and the rules, until it passes.

        Raises:
            UserError: For a view, no state was found that the rules allow, for example because the view's own state
                fails the filter.
        """
        self.config, self.rng = config, rng
        self.own = np.array([state.masks[seat] for state, seat in views])
        # Views repeat, since a player begins all its chains with the same one; each one's readings are computed once.
        distinct = {(id(state), seat): (state, seat) for state, seat in views}
        readings = {key: Readings.of(state, seat, config) for key, (state, seat) in distinct.items()}
        unsure = {key: not reading.sure for key, reading in readings.items()}
        self.readings = [readings[id(state), seat] for state, seat in views]
        self.unsure = np.array([unsure[id(state), seat] for state, seat in views])
        self.tables, self.partners, self.best = np.zeros(self.own.shape), ~self.own, np.ones(len(views))
        for chain, reading in enumerate(self.readings):
            self.tables[chain][self.own[chain]] = reading.draw(rng)
        left = np.arange(len(views))
        for _ in range(MAX_ROUNDS):
            if not len(left):
                return
            found = self._draw(np.resize(left, max(len(left), TRIES)), 1.0)
            left = np.setdiff1d(left, found)
        raise UserError(
            f"game: of {MAX_ROUNDS * TRIES:,} drawn states none passed the hard filter with what a seat sees; this "
            "state is not of these rules, so set game.hard_factor to 0 or play other states"
        )

    def mean_shares(self, draws: int) -> Tables:
        """Returns the mean of table / best over `draws` steps of each chain, in the shape of `tables`."""
        return self._sum_shares(draws) / draws

    def shares_told_by(self, offered: Plans, draws: int) -> Tables:
        """Returns the sum of table / best over the drawn states in which the partner's own-view plan equals its
        proposal.

        Args:
            offered: Partner's proposal in each chain.
            draws: Number of steps of each chain.

        Returns:
            The sum, in the shape of `tables`; 0 in a chain without such a state.
        """
        return self._sum_shares(draws, offered)

    def _sum_shares(self, draws: int, offered: Plans | None = None) -> Tables:
        part = min(1.0, REDRAWN / self.config.size**2) if self.config.hard_factor else 1.0
        total = np.zeros(self.tables.shape)
        for _ in range(draws):
            self._draw(np.arange(len(total)), part)
            shares = self.tables / self.best[:, None, None]
            if offered is not None:
                plans = own_view_plans(self.tables, self.partners, self.config)
                shares *= (plans == offered).all(axis=1)[:, None, None]
            total += shares
        return total

    def _draw(self, chains: NDArray[np.intp], part: float) -> NDArray[np.intp]:
        """Redraw a part of the hidden values in some chains; returns the chains that moved, because the new state
        passes.
        """
        config, rng, own = self.config, self.rng, self.own[chains]
        anew = rng.random(own.shape) < part
        partners = ~own
        if config.visibility == "independent":
            partners = np.where(anew, rng.random(own.shape) < VISIBLE, self.partners[chains])
        scores = np.where(partners, draw_scores(config, own.shape, rng), round(config.mean_score))
        tables = np.where(anew & ~own, scores, self.tables[chains])
        for row in np.flatnonzero(self.unsure[chains] & (rng.random(len(chains)) <= part)):
            tables[row][own[row]] = self.readings[chains[row]].draw(rng)
        best, passed = passes_filter(tables, (own, partners), config)
        kept = chains[passed]
        self.tables[kept], self.partners[kept], self.best[kept] = tables[passed], partners[passed], best[passed]
        return kept


def passes_filter(tables: Tables, masks: tuple[Masks, Masks], config: MatchingConfig) -> tuple[Tables, Masks]:
    """Returns the value of each state's best plan, and whether the state passes the filter of `states.sample_state`.

    Args:
        tables: Scores, shape (states, size, size); the masks of the two players have the same shape.
    """
    best = best_values(tables)
    hard = best > 0
    for mask in masks if config.hard_factor else ():
        views = np.where(mask, tables, config.mean_score)
        unsure = hard
        if tables.shape[-1] <= ENUMERATED:  # the choice among equally good plans matters only if just some pass
            chosen = every_value(views) > every_value(views).max(axis=1, keepdims=True) - TIE
            passing = every_value(tables) * config.hard_factor < best[:, None]
            hard = hard & (chosen & passing).any(axis=1)
            unsure = hard & (chosen & ~passing).any(axis=1)
        left = np.flatnonzero(unsure)
        hard[left] = values_of(tables[left], best_plans(views[left])) * config.hard_factor < best[left]
    return best, hard


def values_of(tables: Tables, plans: Plans) -> Tables:
    """Returns the sum of each plan in its table; shapes (states, size, size) and (states, size) give (states,)."""
    return np.asarray(np.take_along_axis(tables, plans[:, :, None], axis=2).sum(axis=(1, 2)))


def best_plans(tables: Tables) -> Plans:
    """Returns the best plan of each table (Hungarian method), shape (states, size)."""
    plans = [linear_sum_assignment(table, maximize=True)[1] for table in tables]
    return np.array(plans, dtype=np.intp).reshape(-1, tables.shape[-1])


def best_values(tables: Tables) -> Tables:
    """Returns the value of the best plan of each table, shape (states,)."""
    if tables.shape[-1] <= ENUMERATED:
        return np.asarray(every_value(tables).max(axis=1))
    return values_of(tables, best_plans(tables))


def every_value(tables: Tables) -> Tables:
    """Returns the value of every plan in each table, shape (states, plans)."""
    size = tables.shape[-1]
    return np.asarray(tables[:, np.arange(size), _every_plan(size)].sum(axis=2))


@cache
def _every_plan(size: int) -> Plans:
    return np.array(list(permutations(range(size))))


@dataclass(frozen=True)
class Readings:
    """True scores that the numbers in a view can represent: one reading for each range of the secret scale.

    Attributes:
        chances: Chance of each reading, before the filter.
        first: Smallest scores that the numbers can represent in each reading, shape (readings, cells seen).
        last: Largest such scores, in the same shape.
        scales: Smallest and largest scale of each reading, shape (readings, 2).
    """

    chances: NDArray[np.float64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    scales: NDArray[np.float64]
    config: MatchingConfig

    @classmethod
    def of(cls, state: MatchingState, seat: int, config: MatchingConfig) -> Readings:
        """Returns the readings of one player's view.

        `int(score × scale)` changes only at scales k / score, so all scales between two neighbouring values show the
        same numbers.
        """
        shown = np.array([score for row in state.view(seat) for score in row if score is not None])
        low, high = SCALE_MIN, config.scale_max
        scales, widths, edges = np.array([low]), np.ones(1), np.array([low, high])
        if low < high:
            scores = np.arange(1, config.max_score + 1)
            steps = np.concatenate([shown[:, None] / scores, (shown[:, None] + 1) / scores], axis=None)
            edges = np.unique([low, high, *steps[(steps > low) & (steps < high)]])
            scales, widths = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
        first = np.ceil(shown / scales[:, None] - TIE).astype(np.int64)
        last = np.minimum(np.ceil((shown + 1) / scales[:, None] - TIE) - 1, config.max_score).astype(np.int64)
        chances = widths * np.prod(np.maximum(_below(last + 1, config) - _below(first, config), 0), axis=1)
        found = chances > 0
        ranges = np.stack([edges[:-1], edges[1:]], axis=1)
        return cls(chances[found] / chances.sum(), first[found], last[found], ranges[found], config)

    @property
    def sure(self) -> bool:
        """Whether the numbers determine the true scores."""
        return bool((self.first == self.last).all() and (self.first == self.first[0]).all())

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns true scores of the cells seen, row by row, drawn given the numbers in the view."""
        return np.asarray(self.draws(1, rng)[1][0])

    def draws(self, count: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Returns indices of readings, shape (count,), and scores of the cells seen, shape (count, cells seen), drawn
        jointly.
        """
        chosen = rng.choice(len(self.chances), size=count, p=self.chances)
        first, last = self.first[chosen], self.last[chosen]
        low, high = _below(first, self.config), _below(last + 1, self.config)
        power = (low + (high - low) * rng.random(first.shape)) ** self.config.score_power
        scores = np.clip(np.floor((self.config.max_score + 1) * power), first, last).astype(np.int64)
        return np.asarray(chosen, np.intp), scores


def _below(scores: NDArray[np.int64], config: MatchingConfig) -> NDArray[np.float64]:
    """Returns the probability that a random score is below each given score."""
    share: NDArray[np.float64] = scores / (config.max_score + 1)
    return share ** (1 / config.score_power)
