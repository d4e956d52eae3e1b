"""Intervals over people and states at once."""

import numpy as np
import pytest
from scipy import stats

from selfplay_pipeline.metrics.bootstrap import Totals, widening
from selfplay_pipeline.metrics.crossed import Crossed, crossed_contrast


def crossed(values) -> Crossed:
    """One episode of each person on each state, with these rewards."""
    people, states = np.shape(values)
    measured = [(str(p), s, {"reward": (float(values[p][s]), 1)}) for p in range(people) for s in range(states)]
    return Crossed.of(measured, [*map(str, range(people))], range(states))


def test_two_people_on_two_states_have_the_interval_of_an_enumeration():
    """Each of the four draws of one person and one state alone has the probability 1/16, so that they are the ends."""
    interval = crossed([[0.1, 0.5], [0.4, 1.0]]).intervals()["reward"]
    assert interval.value == pytest.approx(0.5)
    assert interval.low == pytest.approx(0.5 - widening(2) * (0.5 - 0.1))
    assert interval.high == pytest.approx(0.5 + widening(2) * (1.0 - 0.5))


def test_people_alone_have_a_t_interval_and_both_spreads_count():
    rng = np.random.default_rng(0)
    of_people, of_states = rng.normal(0, 1, 12), rng.normal(0, 1, 12)
    alone = crossed(np.tile(of_people[:, None], (1, 12))).intervals()["reward"]
    half = stats.t.ppf(0.975, 11) * of_people.std(ddof=1) / np.sqrt(12)
    assert (alone.high - alone.low) / 2 == pytest.approx(half, rel=0.08)
    both = crossed(of_people[:, None] + of_states).intervals()["reward"]
    by_state = Totals.of({"reward": ((of_people[:, None] + of_states).sum(0), np.full(12, 12.0))}).intervals()["reward"]
    assert both.high - both.low > 1.2 * max(alone.high - alone.low, by_state.high - by_state.low)


def test_a_difference_is_paired_and_what_cannot_be_known_has_no_interval():
    values = np.random.default_rng(1).random((6, 5))
    paired = crossed_contrast([(1, crossed(values + 0.25)), (-1, crossed(values))])["reward"]
    assert (paired.value, paired.low, paired.high) == pytest.approx((0.25, 0.25, 0.25))
    for few in (values[:1], values[:, :1]):
        interval = crossed(few).intervals()["reward"]
        assert (interval.low, interval.high) == (None, None) and interval.value == pytest.approx(few.mean())
