"""Intervals resample game states, and differences pair them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.metrics import bootstrap
from selfplay_pipeline.metrics.bootstrap import Interval, Totals, contrast, contrast_over_seeds, difference_over_seeds

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
def test_the_estimate_lies_where_its_values_do_the_interval_around_it_and_nothing_differs_from_itself(values):
    interval = of(values).intervals(200)["reward"]
    assert min(values) - 1e-9 <= interval.low <= interval.high <= max(values) + 1e-9
    assert interval.value == pytest.approx(np.mean(values))
    same = contrast([(1, of(values)), (-1, of(values))], 50)["reward"]
    assert (same.value, same.low, same.high) == (0, 0, 0)


@pytest.mark.parametrize(
    ("above", "below", "value"), [([1.0, 0.5, 0.0], [1, 4, 0], 1.5 / 5), ([0.0, 0.0], [0, 0], None)]
)
def test_a_ratio_weighs_states_by_their_denominators_and_without_any_there_is_none(above, below, value):
    found = Totals.of({"reward_if_agreed": (above, below)}).intervals()["reward_if_agreed"]
    assert found.value == (value if value is None else pytest.approx(value))


@pytest.mark.parametrize(("below", "known"), [([2], False), ([0, 2, 0], False), ([1, 1], True)])
def test_one_state_has_an_estimate_and_no_interval(below, known):
    """Its spread is not known; resampling it would show that there is none."""
    totals = Totals.of({"reward": ([0.5 * count for count in below], below)})
    for found in (totals.intervals()["reward"], contrast([(1, totals), (-1, of([0.0] * len(below)))])["reward"]):
        assert found.value == 0.5 and (found.low is not None, found.high is not None) == (known, known)


@pytest.mark.parametrize(
    ("ends", "plain", "signed"),
    [
        ((0.5, -0.25, 1.0), "0.500 [-0.250, 1.000]", "+0.500 [-0.250, +1.000]"),
        ((0.5, None, None), "0.500", "+0.500"), ((0.5, None, 1.0), "0.500", "+0.500"), ((None, None, None), "–", "–"),
    ],
)  # fmt: skip
def test_an_interval_is_shown_in_brackets_with_signs_where_it_is_of_a_difference(ends, plain, signed):
    interval = Interval(**dict(zip(("value", "low", "high"), ends, strict=True)))
    assert (str(interval), f"{interval:+}") == (plain, signed)


def test_an_interval_in_another_unit_or_moved_by_a_constant_stays_one():
    interval = Interval(value=1.0, low=None, high=2.0)
    assert interval.scaled(10) == Interval(value=10.0, low=None, high=20.0)
    assert interval.shifted(0.5) == Interval(value=1.5, low=None, high=2.5)


def test_the_same_episodes_give_the_same_interval_every_time():
    values = np.random.default_rng(4).random(30)
    assert of(values).intervals() == of(values).intervals()


def test_resamples_drawn_a_few_at_a_time_to_save_memory_give_the_same_interval(monkeypatch):
    values = np.random.default_rng(4).random(60)
    at_once = of(values).intervals()["reward"]
    monkeypatch.setattr(bootstrap, "MOST_DRAWN", 100)
    drawn = [*bootstrap._draws(60, 7, 0)]
    assert [len(part) for part in drawn] == [1] * 7
    assert dict(of(values).intervals()["reward"]) == pytest.approx(dict(at_once), rel=1e-12)


@pytest.mark.parametrize("figure", ["reward", "follows"])
def test_a_state_whose_episodes_were_lost_in_one_evaluation_counts_in_none(figure):
    values, lost = np.array([0.9, 0.8, 0.1, 0.2, 0.7]), np.array([1, 1, 0, 1, 1])
    every, some = (Totals.of({figure: (values * played, played)}) for played in (np.ones(5), lost))
    for terms in ([(1, every), (-1, some)], [(1, some), (-1, every)]):
        found = contrast(terms)[figure]
        assert (found.value, found.low, found.high) == (0, 0, 0)
    apart = difference_over_seeds([[(1, every), (-1, some)]] * 2, [[(1, every), (-1, every)]] * 2)[figure]
    assert (apart.value, apart.low, apart.high) == (0, 0, 0)


def test_a_state_of_which_some_episodes_were_lost_weighs_equally_in_both_evaluations():
    values = np.array([0.9, 0.8, 0.1, 0.2])
    every, some = (
        Totals.of({"reward": (values * played, played)}) for played in (np.full(4, 2), np.array([2, 2, 1, 1]))
    )
    assert contrast([(1, every), (-1, some)])["reward"].value == pytest.approx(0)
    assert some.intervals()["reward"].value == pytest.approx((1.8 + 1.6 + 0.1 + 0.2) / 6), "alone, by episodes"


def test_evaluations_of_other_states_are_not_paired():
    with pytest.raises(ValueError, match="same states"):
        contrast([(1, of([1, 2])), (-1, of([1, 2, 3]))])


@pytest.mark.long
def test_the_interval_covers_the_truth_about_19_times_in_20():
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(200):
        interval = of(rng.beta(2, 1, 80)).intervals(400)["reward"]
        covered += interval.low <= 2 / 3 <= interval.high
    assert 180 <= covered <= 199


def trained_with(seeds, differ_by, rng, states=40):
    """Evaluations of so many seeds, each on states of its own, whose true mean is 0."""
    shifts = differ_by * rng.normal(size=seeds)
    return [[(1, of(shift + 0.2 * rng.normal(size=states)))] for shift in shifts]


@given(UNIT, UNIT.filter(lambda values: len(values) == 30))
def test_with_one_seed_the_interval_over_seeds_is_that_over_its_states(before, after):
    terms = [(1, of(before)), (-1, of(np.resize(after, len(before))))]
    found, alone = contrast_over_seeds([terms], 50)["reward"], contrast(terms, 50)["reward"]
    assert (found.value, found.low, found.high) == pytest.approx((alone.value, alone.low, alone.high))


def test_the_estimate_over_seeds_is_their_mean_and_differences_are_paired_within_each():
    rng = np.random.default_rng(6)
    hardness = [rng.random(50) for _ in range(3)]
    seeds = [[(1, of(hard + rise)), (-1, of(hard))] for hard, rise in zip(hardness, (0.1, 0.11, 0.12), strict=True)]
    found = contrast_over_seeds(seeds)["reward"]
    assert found.value == pytest.approx(0.11)
    t_interval = 4.303 * 0.01 / np.sqrt(3)
    assert found.high - found.value == pytest.approx(t_interval, rel=0.2), "nothing varies but the seeds"


def test_two_seeds_have_the_t_interval():
    states = np.random.default_rng(6).random(50)
    found = contrast_over_seeds([[(1, of(states + rise)), (-1, of(states))] for rise in (0.02, 0.10)])["reward"]
    assert (found.value, found.high - found.value) == pytest.approx((0.06, 12.706 * 0.08 / 2), rel=0.01)


def seeds_at(*rewards: float) -> list[list[tuple[float, Totals]]]:
    return [[(1.0, of([reward] * 5))] for reward in rewards]


def test_a_reward_over_few_seeds_has_an_interval_that_ends_at_1_and_one_that_holds_the_same_rewards():
    whole, cut = (contrast_over_seeds(seeds_at(0.9, 1.0), bounded=names)["reward"] for names in ((), ("reward",)))
    assert whole.low > 0 and whole.high > 1
    assert (cut.value, cut.low, cut.high) == (whole.value, whole.low, 1)
    within = contrast_over_seeds(seeds_at(0.5, 0.51), bounded=("reward",))["reward"]
    assert within == contrast_over_seeds(seeds_at(0.5, 0.51))["reward"]


def test_a_difference_of_rewards_ends_at_minus_1_and_1_and_that_of_two_differences_at_2():
    before, after = of([0.0] * 5), of([1.0] * 5)
    pairs = [[(1.0, after), (-1.0, before)], [(1.0, before), (-1.0, after)]]
    found = contrast_over_seeds(pairs, bounded=("reward",))["reward"]
    assert (found.low, found.value, found.high) == (-1, 0, 1)
    twice = contrast_over_seeds([[*pair, *pair] for pair in pairs], bounded=("reward",))["reward"]
    assert (twice.low, twice.high) == (-2, 2)
    apart = difference_over_seeds(seeds_at(0.0, 1.0), seeds_at(0.0, 1.0), bounded=("reward",))["reward"]
    assert (apart.low, apart.value, apart.high) == (-1, 0, 1)


def test_cutting_keeps_what_is_unknown_and_the_estimate():
    assert Interval(value=0.5, low=None, high=1.2).within(0, 1) == Interval(value=0.5, low=None, high=1)
    assert Interval(value=None, low=None, high=None).within(0, 1) == Interval(value=None, low=None, high=None)


def test_the_seeds_of_two_groups_are_not_paired_but_their_states_are():
    hardness = np.random.default_rng(9).random(50)

    def group(*rises):
        return [[(1, of(hardness + rise))] for rise in rises]

    found, turned = (
        difference_over_seeds(group(*rises), group(0.0, 0.02, 0.04))["reward"]
        for rises in ((0.1, 0.12, 0.14), (0.14, 0.12, 0.1))
    )
    t_interval = 2.776 * np.sqrt(2 * 0.02**2 / 3)
    for one in (found, turned):
        assert one.value == pytest.approx(0.1)
        assert one.high - one.value == pytest.approx(t_interval, rel=0.2), "states are alike, and cancel"
    with pytest.raises(ValueError, match="needs two seeds"):
        difference_over_seeds(group(0.1), group(0.0, 0.1))


@pytest.mark.long
@pytest.mark.parametrize("seeds", [3, 8])
@pytest.mark.parametrize("differ_by", [0, 0.2])
def test_the_interval_over_seeds_covers_the_truth_19_times_in_20_or_more_often(seeds, differ_by):
    """Of 200 studies 190 cover on average, with a standard deviation of 3; fewer than 180 occur once in 1,000."""
    rng = np.random.default_rng(7)
    intervals = [contrast_over_seeds(trained_with(seeds, differ_by, rng), 200)["reward"] for _ in range(200)]
    assert sum(interval.low <= 0 <= interval.high for interval in intervals) >= 180


def test_an_interval_over_the_states_of_one_seed_says_nothing_of_other_seeds():
    rng = np.random.default_rng(8)
    intervals = [contrast_over_seeds(trained_with(1, 0.2, rng), 200)["reward"] for _ in range(200)]
    assert sum(interval.low <= 0 <= interval.high for interval in intervals) < 100
