"""Intervals over people and states at once."""

import numpy as np
import pytest
from scipy import stats

from selfplay_pipeline.people.crossed import Crossed, crossed_contrast


def crossed(values, played=None) -> Crossed:
    """One episode of each person on each state, or on those that were played, with these rewards."""
    people, states = np.shape(values)
    played = np.ones((people, states)) if played is None else played
    cells = [(p, s) for p in range(people) for s in range(states) if played[p][s]]
    measured = [(str(p), s, {"reward": (float(values[p][s]), 1)}) for p, s in cells]
    return Crossed.of(measured, [*map(str, range(people))], range(states))


def test_two_people_on_two_states_have_the_interval_of_a_computation_by_hand():
    """Rewards 1, 5 and 4, 10: the people's means are 3 and 7, the states' 2.5 and 7.5, all 5."""
    interval = crossed([[1, 5], [4, 10]]).intervals()["reward"]
    people = 2 * ((3 - 5) ** 2 + (7 - 5) ** 2) / 4
    states = 2 * ((2.5 - 5) ** 2 + (7.5 - 5) ** 2) / 4
    pairs = 4 / 3 * ((1 - 5) ** 2 + (5 - 5) ** 2 + (4 - 5) ** 2 + (10 - 5) ** 2) / 16
    half = stats.t.ppf(0.975, 1) * np.sqrt(people + states - pairs)
    assert people + states - pairs > max(people, states)
    assert (interval.value, interval.low, interval.high) == pytest.approx((5, 5 - half, 5 + half))


def test_a_reward_of_few_people_has_an_interval_that_ends_at_0_and_1():
    few = crossed([[0.0, 1.0], [1.0, 1.0]])
    whole, cut = (few.intervals(names)["reward"] for names in ((), {"reward"}))
    assert whole.low < 0 and whole.high > 1
    assert (cut.value, cut.low, cut.high) == (whole.value, 0, 1)
    rise = crossed_contrast([(1, few), (-1, crossed([[1.0, 0.0], [0.0, 0.0]]))], {"reward"})["reward"]
    assert (rise.low, rise.high) == (-1, 1)


def test_people_alone_have_their_t_interval():
    of_people = np.random.default_rng(0).normal(0, 1, 12)
    interval = crossed(np.tile(of_people[:, None], (1, 12))).intervals()["reward"]
    low, high = stats.t.interval(0.95, 11, of_people.mean(), stats.sem(of_people))
    assert (interval.low, interval.high) == pytest.approx((low, high))


@pytest.mark.parametrize(("people", "states", "each"), [(6, 12, 6), (12, 12, 6), (30, 40, 10)])
def test_the_interval_covers_the_truth_where_people_and_states_differ(people, states, each):
    rng, covered = np.random.default_rng(1), 0
    for _ in range(300):
        values = rng.normal(0, 0.1, (people, 1)) + rng.normal(0, 0.1, states) + rng.normal(0, 0.2, (people, states))
        played = np.array([rng.permutation(states) < each for _ in range(people)])
        interval = crossed(values, played).intervals()["reward"]
        covered += interval.low <= 0 <= interval.high
    assert 0.91 < covered / 300 < 0.99


def test_only_people_and_states_that_have_a_figure_count():
    """Three people agreed on three states of 4 × 4; the others never did, and say nothing of the reward given that."""
    values = np.random.default_rng(2).random((4, 4))
    measured = [
        (str(p), s, {"reward": (values[p, s] * (p < 3 and s < 3), float(p < 3 and s < 3))})
        for p in range(4) for s in range(4)
    ]  # fmt: skip
    found = Crossed.of(measured, [*map(str, range(4))], range(4)).intervals()["reward"]
    assert (found.low, found.high) == pytest.approx(
        [getattr(crossed(values[:3, :3]).intervals()["reward"], end) for end in ("low", "high")]
    )
    alone = [(str(p), s, {"reward": (0.8 * (p == s == 0), float(p == s == 0))}) for p in range(4) for s in range(4)]
    only = Crossed.of(alone, [*map(str, range(4))], range(4)).intervals()["reward"]
    assert (only.value, only.low, only.high) == (0.8, None, None)


def test_people_and_states_exchanged_have_the_same_interval():
    values = np.random.default_rng(3).random((6, 4)) + 5 * np.arange(4)
    one, other = (crossed(table).intervals()["reward"] for table in (values, values.T))
    assert (one.low, one.high) == pytest.approx((other.low, other.high))


def test_without_an_episode_there_is_no_figure():
    assert Crossed.of([], [], []).intervals() == Crossed.of([], ["a"], [0]).intervals() == {}


def test_a_difference_is_paired_and_what_cannot_be_known_has_no_interval():
    values = np.random.default_rng(1).random((6, 5))
    paired = crossed_contrast([(1, crossed(values + 0.25)), (-1, crossed(values))])["reward"]
    assert (paired.value, paired.low, paired.high) == pytest.approx((0.25, 0.25, 0.25))
    for few in (values[:1], values[:, :1]):
        interval = crossed(few).intervals()["reward"]
        assert (interval.low, interval.high) == (None, None) and interval.value == pytest.approx(few.mean())
