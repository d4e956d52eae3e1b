"""A planted change is found, chance is not taken for one, and what merely goes along is no correlation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_asking_records import dialogue

from selfplay_pipeline.report.questions.statistics import (
    by_step,
    correlation,
    figures_of,
    frame_of,
    reward_by_questions,
    trend,
)


def simulate(
    seed: int, steps: int = 5, states: int = 8, episodes: int = 4, rise: float = 0.0, fresh: bool = True
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Steps, counts and game states of dialogues; states differ in how much they make a player ask.

    Args:
        rise: of the mean from step to step.
        fresh: other states at every step, instead of the same ones.
    """
    rng = np.random.default_rng(seed)
    step, state, _ = np.indices((steps, states, episodes)).reshape(3, -1)
    state = state + step * states * fresh
    habit = np.exp(rng.normal(0, 0.6, state.max() + 1))
    return step, rng.poisson(habit[state]) + rise * step, state


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize(("rise", "verdict"), [(0.3, "rose"), (-0.3, "fell")])
def test_a_planted_change_is_found(rise, verdict, fresh):
    found = trend(*simulate(0, rise=rise, fresh=fresh))
    assert found.verdict == verdict
    assert found.slope.low < rise < found.slope.high
    assert found.p < 0.05


@pytest.mark.long
@pytest.mark.parametrize(
    "design",
    [{}, {"fresh": False}, {"steps": 2, "states": 4}, {"steps": 12, "states": 2}, {"states": 30, "episodes": 1}],
)
def test_under_the_null_about_one_data_set_in_twenty_shows_a_trend(design):
    found = [trend(*simulate(seed, **design), resamples=399) for seed in range(400)]
    assert 0.02 <= np.mean([trend.p < 0.05 for trend in found]) <= 0.08


def test_dialogues_on_one_state_are_not_taken_for_independent():
    wrong = []
    for seed in range(100):
        step, values, state = simulate(seed, episodes=8)
        wrong.append(trend(step, values, np.arange(len(state)), resamples=399).p < 0.05)
    assert np.mean(wrong) > 0.2


@given(st.integers(0, 10_000), st.floats(-0.3, 0.3), st.booleans())
@settings(max_examples=30)
def test_the_interval_leaves_out_no_change_just_where_the_test_rejects(seed, rise, fresh):
    found = trend(*simulate(seed, rise=rise, fresh=fresh), resamples=399)
    assert (found.p < 0.05) == (not found.slope.low <= 0 <= found.slope.high) == (found.verdict != "no evidence")


def test_the_opposite_values_show_the_opposite_trend_and_the_first_step_may_have_any_number():
    step, values, state = simulate(3, rise=0.5)
    found, opposite = trend(step, values, state), trend(step + 100, -values, state)
    assert (found.verdict, opposite.verdict) == ("rose", "fell")
    assert (opposite.p, opposite.slope.value) == (found.p, pytest.approx(-found.slope.value))


def test_without_two_steps_or_six_states_nothing_can_be_told():
    step, values, state = simulate(0, rise=1)
    one_step, five_states = step == 0, state % 8 == 0
    assert trend(step[one_step], values[one_step], state[one_step]).verdict == "cannot be told"
    assert trend(step[five_states], values[five_states], state[five_states]).verdict == "cannot be told"
    nothing = trend(step, np.full(len(step), np.nan), state)
    assert (nothing.verdict, nothing.episodes) == ("cannot be told", 0)


def test_flat_and_perfect_lines_have_a_verdict():
    step, _, state = simulate(0)
    assert trend(step, np.zeros(len(step)), state).p == 1
    assert trend(step, 2.0 * step, state).verdict == "rose"


def test_a_common_trend_is_no_correlation_within_steps():
    misled = 0
    for seed in range(100):
        step, questions, state = simulate(seed, steps=10, rise=1)
        rewards = 0.1 * step + np.random.default_rng(1000 + seed).normal(0, 0.1, len(step))
        assert np.corrcoef(questions, rewards)[0, 1] > 0.7
        within = correlation(questions, rewards, step, state, resamples=399)
        misled += not within.low <= 0 <= within.high
    assert misled <= 10


def test_a_correlation_within_steps_is_found_with_its_size():
    step, _, state = simulate(0, steps=10, states=20)
    rng = np.random.default_rng(1)
    questions = rng.normal(size=len(step)) - step
    rewards = 0.6 * (questions + step) + 0.8 * rng.normal(size=len(step)) + step
    found = correlation(questions, rewards, step, state)
    assert found.low < 0.6 < found.high
    assert found.high - found.low < 0.15


def test_hard_states_that_invite_questions_make_no_correlation_within_states():
    step, _, state = simulate(0, states=30)
    rng = np.random.default_rng(1)
    hardness = rng.normal(size=state.max() + 1)[state]
    questions, rewards = (sign * hardness + rng.normal(size=len(state)) for sign in (1, -1))
    assert correlation(questions, rewards, step, state).high < -0.3
    within = correlation(questions, rewards, state, state)
    assert within.low < 0 < within.high


def test_what_never_varies_has_no_correlation():
    step, values, state = simulate(0)
    assert correlation(np.ones(len(step)), values, step, state).value is None
    assert correlation(values, step * 1.0, step, state).value is None


def test_shares_are_ratios_of_sums_over_the_dialogues_of_a_step():
    few = dialogue(0, 0, messages=2, questions=2, specific=0, repeated=0)
    many = dialogue(0, 1, messages=8, questions=2, specific=2, repeated=1)
    found = figures_of(frame_of([few, many]))
    figures = {name: interval.value for name, interval in found.items()}
    assert (figures["asking"], figures["specific"], figures["repeated"]) == (0.4, 0.5, 0.5)
    assert figures["questions"] == 2
    assert found["repeated"].low is None, "only one state has a question for a score"
    assert found["asking"].low == 0.25


def test_a_state_missing_at_a_step_and_a_dialogue_without_messages_are_no_hindrance():
    silent = {"messages": 0, "questions": 0, "specific": 0, "repeated": 0, "partner_messages": 0}
    steps = by_step(frame_of([dialogue(2, 0), dialogue(2, 1), dialogue(7, 1, **silent)]))
    assert [(step.step, step.episodes, step.states) for step in steps] == [(2, 2, 2), (7, 1, 1)]
    assert steps[1].figures["asking"].value is None
    assert (steps[1].figures["questions"].value, steps[1].figures["questions"].low) == (0, None)


@given(st.lists(st.integers(0, 60), min_size=1, max_size=60))
@settings(max_examples=40)
def test_every_dialogue_is_in_one_bin_of_questions(questions):
    records = [dialogue(0, g, messages=60, questions=n, specific=0, repeated=0) for g, n in enumerate(questions)]
    bins = reward_by_questions(frame_of(records))
    assert sum(found.episodes for found in bins) == len(questions)
    assert len(bins) <= 7
    assert (bins[0].low, bins[-1].high) == (min(questions), max(questions))
    assert all(before.high < after.low for before, after in itertools.pairwise(bins))
    assert all(found.reward.value == pytest.approx(0) for found in bins), "all have the same reward"


def test_reward_by_questions_is_free_of_a_common_trend():
    records = [
        dialogue(
            step, step * 4 + group, messages=9, questions=step + group % 2, specific=0, repeated=0, reward=step / 10
        )
        for step in range(5)
        for group in range(4)
    ]
    assert [found.reward.value for found in reward_by_questions(frame_of(records))] == pytest.approx([0] * 6)
