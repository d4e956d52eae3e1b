"""The table of GRPO beside filtered behaviour cloning: what it says of known outcomes."""

import numpy as np
import pytest

from bench.methods import GRPO, MODES, WARM, Budget, budget_of, row_of, scaled, table
from selfplay_pipeline.iterate.manifest import RunState
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

CLONING = "filtered-bc 0.0003"
BUDGET = Budget(episodes=4000, rows=800, own_tokens=9000, updates=16, minutes=2.5)


def totals(reward: float) -> Totals:
    spread = np.linspace(-0.1, 0.1, 50)[:, None]
    return Totals(("reward",), reward + spread, np.ones((50, 1)))


OUTCOMES = {
    seed: {
        arm: dict.fromkeys(MODES, totals(reward + 0.001 * seed))
        for arm, reward in ((WARM, 0.8), (GRPO, 0.86), (CLONING, 0.83))
    }
    for seed in (1, 2, 3)
}


def test_a_row_has_rewards_rises_and_the_difference_to_grpo():
    row = row_of(CLONING, OUTCOMES, [BUDGET, BUDGET])
    assert row.reward["sampled"].value == pytest.approx(0.832)
    assert row.rise["greedy"].value == pytest.approx(0.03)
    assert row.minus_grpo["sampled"].value == pytest.approx(-0.03)
    assert row.budget == BUDGET


def test_the_table_gives_the_rise_for_what_it_took():
    lines = table({arm: row_of(arm, OUTCOMES, [BUDGET]) for arm in (GRPO, CLONING)}).splitlines()
    cells = {line.split(" | ")[0].strip("| "): line for line in lines}
    assert "+0.015 [" in cells["rise per 1,000 episodes, sampled"]
    assert "+0.024 [" in cells["rise per minute, sampled"] and "+0.012 [" in cells["rise per minute, sampled"]
    assert cells["own tokens"].endswith("| 9,000 | 9,000 |")
    assert len({line.count("|") for line in lines}) == 1


def test_a_budget_is_that_of_all_iterations_without_the_first_evaluation():
    trained = {"checkpoint": "c", "carried": False, "steps": 1, "rows": 10, "updates": 2, "own_tokens": 100}
    played = {
        "groups": 4, "groups_without_signal": 0, "mean_reward": 0.5, "reward_standard_error": 0.1, "episodes": 32,
        "agreement_rate": 1.0, "illegal_per_episode": 0.0, "messages_per_episode": 1.0,
    }  # fmt: skip
    stages = {
        "generate": {"seconds": 30, "figures": played},
        "train": {"seconds": 90, "figures": trained},
    }
    state = RunState.model_validate({"iterations": {0: {}, 1: stages, 2: stages}})
    assert budget_of(state) == Budget(episodes=64, rows=20, own_tokens=200, updates=4, minutes=4)


def test_an_interval_in_another_unit_stays_one():
    assert scaled(Interval(value=1.0, low=None, high=2.0), 10) == Interval(value=10.0, low=None, high=20.0)
