"""Did the policy learn to ask? Each condition can fail, and alone decides; figures of simulated evaluations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.asked import MODES, PLACEBO, TRAINED, WARM, Asked, Seed, asked, tables
from bench.coin_plot import plot
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

STATES = 100
RESAMPLES = 200
COLUMNS = ("optimal", "specific", "learned", "leaks", "turns", "illegal")


def totals(reward: float, questions: float, again: float = 0.1, seed: int = 0) -> Totals:
    """Figures of one episode of each state, which vary a little over states."""
    rng = np.random.default_rng(seed)
    one = np.ones(STATES)
    noise = rng.normal(0, 0.05, STATES)
    found = {
        "reward": (reward + noise, one),
        "questions": (questions * one, one),
        "repeated": (again * one + noise, one),
    }
    return Totals.of(found | {name: (one, one) for name in COLUMNS})


COINS = {chance: totals(0.8 + 0.04 * chance * 5, 5 * chance) for chance in (0.0, 0.5, 1.0)}
"""Each question is worth 0.04."""


def judged(
    seeds: int = 3, *, reward: float = 0.95, greedy: float = 0.96, again: float = 0.02, placebo: float = 0.86
) -> Asked:
    """Trainings that ask two questions, where a coin reaches 0.88."""
    players = {
        WARM: {mode: totals(0.87, 2.0, 0.1) for mode in MODES},
        TRAINED: {"sampled": totals(reward, 2.0, again), "greedy": totals(greedy, 2.0, again)},
        PLACEBO: {mode: totals(placebo, 2.0, 0.1) for mode in MODES},
    }
    return asked([Seed(COINS, players)] * seeds, RESAMPLES)


def failing(found: Asked) -> list[str]:
    return [condition.name for condition in found.conditions if not condition.holds]


def test_who_meets_every_condition_learned_to_ask() -> None:
    found = judged()
    assert failing(found) == [] and found.verdict.startswith("The policy learned to ask")
    assert found.above_coin[TRAINED]["sampled"].value == pytest.approx(0.95 - 0.88)
    assert found.more_than_placebo["sampled"].value == pytest.approx(0.95 - 0.86)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"reward": 0.88, "placebo": 0.8}, "above that of a coin"), ({"greedy": 0.0}, "above that of a coin"),
        ({"placebo": 0.99}, "than a placebo's"), ({"again": 0.1}, "ask only again"), ({"again": 0.3}, "ask only again"),
        ({"greedy": 0.94}, "at least as good as sampled"), ({"seeds": 1}, "more than one seed"),
    ],
)  # fmt: skip
def test_each_condition_can_fail_and_then_nothing_is_claimed(change: dict[str, float], name: str) -> None:
    found = judged(**change)  # type: ignore[arg-type]
    assert any(name in failed for failed in failing(found))
    assert found.verdict.startswith("It is not shown") and name in found.verdict


def test_the_table_has_every_player_every_condition_and_the_verdict() -> None:
    found = judged()
    text = tables(found)
    assert "|  | warm start | trained | placebo |" in text and found.verdict in text
    assert "above a coin that asks as often, sampled | -0.010" in text
    assert "|  | coin 0 | coin 0.5 | coin 1 |" in text and "questions | 0.000" in text
    assert all(condition.name in text for condition in found.conditions)


def test_who_never_asks_is_compared_with_the_coin_that_never_asks_and_nothing_is_made_of_questions() -> None:
    never = Totals.of({name: (np.full(STATES, 0.7), np.ones(STATES)) for name in ("reward", *COLUMNS)})
    zeros, ones = np.zeros(STATES), np.ones(STATES)
    silent = Totals.of(
        {"questions": (zeros, ones), "repeated": (zeros, zeros)}
        | {name: (never.numerators[:, number], ones) for number, name in enumerate(never.names)}
    )
    seed = Seed(COINS, {player: {mode: silent for mode in MODES} for player in (WARM, TRAINED, PLACEBO)})
    found = asked([seed, seed], RESAMPLES)
    assert found.above_coin[TRAINED]["greedy"].value == pytest.approx(0.7 - 0.8, abs=0.01)
    assert found.asks_again["sampled"].value is None and "fewer questions ask only again" in failing(found)


def test_the_plot_is_drawn_with_one_seed_too_where_intervals_may_be_missing(tmp_path: Path) -> None:
    for seeds in (1, 3):
        plot(judged(seeds), Interval(value=0.9, low=None, high=None), tmp_path / f"{seeds}.png")
        assert (tmp_path / f"{seeds}.png").read_bytes().startswith(b"\x89PNG")
