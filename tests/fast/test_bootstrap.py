"""Intervals resample game states, and differences pair them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.metrics.bootstrap import Totals, contrast

UNIT = st.lists(st.floats(0, 1), min_size=2, max_size=30)


def of(values, episodes=1.0) -> Totals:
    return Totals.of({"reward": (np.array(values) * episodes, np.full(len(values), episodes))})


def test_the_interval_of_a_mean_is_that_of_the_normal_approximation():
    values = np.random.default_rng(1).random(400)
    interval = of(values).intervals()["reward"]
    error = 1.96 * values.std() / 20
    assert interval.value == pytest.approx(values.mean())
    assert interval.low == pytest.approx(values.mean() - error, abs=0.1 * error)
    assert interval.high == pytest.approx(values.mean() + error, abs=0.1 * error)


def test_more_episodes_of_the_same_states_do_not_narrow_the_interval():
    values = np.random.default_rng(2).random(50)
    assert of(values, episodes=100).intervals()["reward"].low == pytest.approx(of(values).intervals()["reward"].low)


def test_a_pair_of_evaluations_of_the_same_states_differs_by_less_than_two_independent_ones():
    rng = np.random.default_rng(3)
    hardness = rng.random(100)
    before, after = of(hardness), of(hardness + 0.05 + 0.01 * rng.random(100))
    paired = contrast([(1, after), (-1, before)])["reward"]
    alone = after.intervals()["reward"]
    assert 0.05 < paired.low < paired.value < paired.high < 0.06
    assert alone.high - alone.low > 10 * (paired.high - paired.low)


@given(UNIT)
def test_an_evaluation_does_not_differ_from_itself(values):
    interval = contrast([(1, of(values)), (-1, of(values))], 50)["reward"]
    assert (interval.value, interval.low, interval.high) == (0, 0, 0)


@given(UNIT)
def test_the_estimate_lies_where_its_values_do_and_the_interval_around_them(values):
    interval = of(values).intervals(200)["reward"]
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert interval.value == pytest.approx(np.mean(values))


def test_a_ratio_weighs_states_by_their_denominators():
    given_agreement = Totals.of({"reward_if_agreed": ([1.0, 0.5, 0.0], [1, 4, 0])})
    assert given_agreement.intervals()["reward_if_agreed"].value == pytest.approx(1.5 / 5)


def test_where_nothing_was_agreed_there_is_no_figure():
    interval = Totals.of({"reward_if_agreed": ([0.0, 0.0], [0, 0])}).intervals()["reward_if_agreed"]
    assert (interval.value, str(interval)) == (None, "–")


def test_the_same_episodes_give_the_same_interval_every_time():
    values = np.random.default_rng(4).random(30)
    assert of(values).intervals() == of(values).intervals()


def test_evaluations_of_other_states_are_not_paired():
    with pytest.raises(ValueError, match="same states"):
        contrast([(1, of([1, 2])), (-1, of([1, 2, 3]))])


def test_the_interval_covers_the_truth_about_19_times_in_20():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        interval = of(rng.beta(2, 1, 80)).intervals(400)["reward"]
        covered += interval.low <= 2 / 3 <= interval.high
    assert 180 <= covered <= 199
