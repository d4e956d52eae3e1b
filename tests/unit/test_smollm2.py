"""What `make learn-smollm2` compares."""

import numpy as np
import pytest

from bench.arms import MODES, WARM
from bench.smollm2 import BEFORE, CONFIG, GRPO, SHOWN, Budget, Study, cloning, player_of
from selfplay_pipeline.metrics.bootstrap import Totals

BUDGETS = [Budget(episodes=128, rows=256, own_tokens=9000, updates=4, minutes=minutes) for minutes in (10, 20)]


def totals(*values: float) -> Totals:
    """Figures of 50 states in the order of SHOWN."""
    return Totals(SHOWN, np.array(values) + np.linspace(-0.1, 0.1, 50)[:, None], np.ones((50, len(SHOWN))))


OUTCOMES = {
    seed: {
        BEFORE: dict.fromkeys(MODES, totals(0.1, 0.0, 0.0)),
        WARM: dict.fromkeys(MODES, totals(0.96, 0.9, 0.7)),
        GRPO: dict.fromkeys(MODES, totals(0.98, 0.95, 0.8 + 0.01 * seed)),
    }
    for seed in (1, 2)
}
HALF_DONE = {1: OUTCOMES[1], 2: {name: OUTCOMES[2][name] for name in (BEFORE, WARM)}}


def test_a_player_is_compared_with_the_warm_start_over_the_seeds_that_it_has():
    both, one = player_of(GRPO, OUTCOMES, BUDGETS), player_of(GRPO, HALF_DONE, BUDGETS[:1])
    assert both.seeds == 2 and both.rise["greedy"]["reward"].value == pytest.approx(0.115)
    assert [each["greedy"]["reward"].value for each in both.rise_of_seeds] == pytest.approx([0.11, 0.12])
    assert one.seeds == 1 and one.rise["greedy"]["reward"].value == pytest.approx(0.11)
    assert both.budget.minutes == 15


def test_both_methods_make_as_many_updates_of_as_many_groups():
    config = Study(CONFIG, iterations=1, states=20, episodes=1, work=None).config(1)
    rows = config.generate.num_episodes * 2
    assert rows == config.train.train_batch_size
    assert cloning(config, 1e-4, 1)["train.train_batch_size"] == rows // config.generate.episodes_per_state
