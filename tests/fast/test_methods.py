"""The table of GRPO beside filtered behaviour cloning: what it says of known outcomes."""

from pathlib import Path

import numpy as np
import pytest
from factories import FINISHED

from bench.methods import MODES, WARM, Budget, best_of, budget_of, cloning, grpo_of, row_of
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.iterate.folder import RunState
from selfplay_pipeline.metrics.bootstrap import Totals
from selfplay_pipeline.metrics.signal import Key, Signal
from selfplay_pipeline.train.groups import Group, TrainData, updates_of
from selfplay_pipeline.train.offline_stage import training_of
from selfplay_pipeline.train.verl_overrides import plan_for, whole_batch

GRPO, CLONING = "grpo 7e-05", "filtered-bc 0.0003 best 1"
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
    row = row_of(CLONING, OUTCOMES, [BUDGET, BUDGET], GRPO)
    assert row.reward["sampled"].value == pytest.approx(0.832)
    assert row.rise["greedy"].value == pytest.approx(0.03)
    assert row.minus_grpo["sampled"].value == pytest.approx(-0.03)
    assert row.budget == BUDGET


def test_of_the_candidates_that_with_the_highest_sampled_reward_is_compared():
    rows = {arm: row_of(arm, OUTCOMES, [BUDGET]) for arm in (GRPO, CLONING)}
    assert all(row.minus_grpo == {} for row in rows.values())
    assert best_of({GRPO: {}, CLONING: {}}, rows) == GRPO and best_of({CLONING: {}}, rows) == CLONING


def episodes_of(config: Config, with_signal: int) -> TrainData:
    """An iteration's episodes: whole groups, of which so many have a signal."""
    size = config.generate.episodes_per_state
    count = config.generate.num_episodes // size
    groups = [
        Group(
            Key((0, index)),
            rows=tuple(range(2 * size * index, 2 * size * (index + 1))),
            rewards=(1.0 if index < with_signal else 0.5, *[0.5] * (size - 1)),
            episodes=tuple(episode for episode in range(size) for _ in "01"),
        )
        for index in range(count)
    ]
    return TrainData(groups, Signal.of(group.rewards for group in groups), 0.8, size, 2 * size * count, 100, 100)


def updates(config: Config, data: TrainData) -> int:
    """Optimizer steps that a configuration's training makes on these episodes, as the trainer cuts them."""
    options = training_of(config, Path("train.parquet"), Path("out"), checkpoint=str(config.model), seed=0)
    steps = plan_for(options, data, len(data.to_train(options.keep_zero_signal, options.imitated)))
    return sum(updates_of(len(step), whole_batch(options, data) / options.mini_batches) for step in steps)


@pytest.mark.parametrize("with_signal", [64, 60, 59, 40, 7])
@pytest.mark.parametrize("best", [1, 4])
def test_cloning_makes_as_many_updates_as_grpo(with_signal: int, best: int):
    grpo = load_config("tiny", {})
    data = episodes_of(grpo, with_signal)
    assert updates(load_config("tiny", cloning(grpo, 3e-4, best)), data) == updates(grpo, data) > 0
    assert updates(load_config("tiny", {"train.method": "filtered-bc"}), data) == 1, "without smaller batches"


@pytest.mark.parametrize("source", ["tiny", "tiny_honest"])
def test_neither_method_has_a_kl_term(source: str):
    config = load_config(source, {})
    assert config.train.has_reference, "else there was nothing to make equal"
    for changes in (grpo_of(3e-4), cloning(config, 3e-4, 4)):
        arm = load_config(source, changes).train
        assert not arm.has_reference and arm.learning_rate == 3e-4


def test_a_budget_is_that_of_the_iterations_asked_for_without_the_first_evaluation():
    trained = FINISHED["train"] | {"steps": 1, "rows": 10, "updates": 2, "own_tokens": 100}
    stages = {
        "generate": {"seconds": 30, "figures": FINISHED["generate"] | {"episodes": 32}},
        "train": {"seconds": 90, "figures": trained},
    }
    state = RunState.model_validate({"iterations": {0: {}, 1: stages, 2: stages, 3: stages}})
    assert budget_of(state, 2) == Budget(episodes=64, rows=20, own_tokens=200, updates=4, minutes=4)
