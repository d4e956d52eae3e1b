"""Which rows are compared, which groups are trained on, and how they are cut into steps, updates and passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from training_rows import training_row, write_training_rows

from selfplay_pipeline.convert.selection import best_episodes, best_of_groups, held_out
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.metrics.signal import Scored, Signal, groups_of, has_signal
from selfplay_pipeline.train.groups import (
    NoSignalError,
    by_length,
    mixed,
    plan_steps,
    read_data,
    split_rows,
    to_groups,
    updates_of,
)


def write(
    path: Path, rewards: list[list[Any]], *, episodes_per_state: int = 2, temperature: float = 0.7,
    seats: tuple[int, ...] = (0, 1), **facts: Any,
) -> Path:  # fmt: skip
    """Writes one group per list of rewards; a reward is that of an episode, or of each of its seats."""
    rows = [
        training_row(
            group, episode, seat, reward[seat] if isinstance(reward, tuple) else reward,
            prompt=[1] * (3 + group), response=[2] * (4 + episode), mask=[1] * (4 + episode),
            logprobs=[-1.0] * (4 + episode), episodes_per_state=episodes_per_state, temperature=temperature,
        )
        for group, episodes in enumerate(rewards)
        for episode, reward in enumerate(episodes)
        for seat in seats
    ]  # fmt: skip
    return write_training_rows(path, rows, **facts)


def test_groups_lengths_and_temperature_are_read_and_files_stay_apart(tmp_path):
    data = read_data([write(tmp_path / "a", [[0.1, 0.9], [0.5, 0.5], [1.0]]), write(tmp_path / "b", [[0.1, 0.9]])])
    assert [(group.file, group.index, group.rows, group.has_signal) for group in data.groups] == [
        (0, 0, (0, 1, 2, 3), True),
        (0, 1, (4, 5, 6, 7), False),
        (1, 0, (10, 11, 12, 13), True),
    ], "a group of one episode has nothing to compare"
    assert (data.signal, data.num_rows, data.temperature) == (Signal(groups=4, without=2), 14, 0.7)
    assert (data.max_prompt_tokens, data.max_response_tokens, data.seats_per_episode) == (5, 5, 2)
    assert [[group.index for group in data.to_train(kept)] for kept in (False, True)] == [[0, 0], [0, 1, 0]]


def test_where_seats_have_rewards_of_their_own_each_is_a_group(tmp_path):
    data = read_data([write(tmp_path / "a", [[(0.1, 0.5), (0.9, 0.5)]], shared_reward=False)])
    assert [(group.key.seat, group.rows, group.rewards, group.has_signal) for group in data.groups] == [
        (0, (0, 2), (0.1, 0.9), True), (1, (1, 3), (0.5, 0.5), False),
    ]  # fmt: skip
    assert data.seats_per_episode == 1
    assert [group.rows for group in data.to_train(False, 1)] == [(2,)]


def test_the_best_episodes_rows_are_imitated_each_by_itself_where_there_is_a_signal(tmp_path):
    data = read_data([write(tmp_path / "a", [[0.1, 0.9, 0.9], [0.5, 0.5], [1.0]], episodes_per_state=3)])
    assert [group.rows for group in data.to_train(False, 1)] == [(2,), (3,)], "of two alike, the earlier one"
    assert [group.rows for group in data.to_train(False, 2)] == [(2,), (3,), (4,), (5,)]
    assert [group.rows for group in data.to_train(True, 1)] == [(2,), (3,), (6,), (7,)]


def test_all_rows_are_imitated_where_none_is_to_be_chosen(tmp_path):
    path = write(tmp_path / "a", [[0.5], [1.0]], episodes_per_state=1)
    assert [group.rows for group in read_data([path], alone=True).to_train(False, 0)] == [(0,), (1,), (2,), (3,)]


def test_rows_without_anything_to_compare_are_refused(tmp_path):
    files = {value: write(tmp_path / str(value), [[0.1, 0.9]], temperature=value) for value in (0.7, 1.0, 0.0)}
    for refused, words in (
        ([write(tmp_path / "one", [[0.5]], episodes_per_state=1)], "one episode per state"),
        ([write(tmp_path / "left", [[0.5], [0.7]])], "no two episodes of a state"),
        ([files[0.7], files[1.0]], r"mixed sampling temperatures \[0.7, 1.0\]"),
        ([files[0.0]], "sampled greedily"),
    ):
        with pytest.raises(UserError, match=words):
            read_data(refused)
    with pytest.raises(NoSignalError, match="none of 2 groups carries a signal"):
        read_data([write(tmp_path / "flat", [[0.5, 0.5], [1.0, 1.0]])]).to_train(keep_zero_signal=False)


@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 9))
def test_every_group_is_in_every_epoch_once_and_steps_are_even(groups, per_step, seed):
    plan = plan_steps(groups, per_step, epochs=3, seed=seed)
    steps = len(plan) // 3
    assert plan == plan_steps(groups, per_step, epochs=3, seed=seed)
    for epoch in range(3):
        part = plan[epoch * steps : (epoch + 1) * steps]
        assert sorted(group for step in part for group in step) == list(range(groups))
    sizes = {len(step) for step in plan}
    assert max(sizes) <= per_step and max(sizes) - min(sizes) <= 1 and steps == -(-groups // per_step)


def test_the_order_depends_on_the_seed_and_the_epoch():
    plan = plan_steps(20, 20, epochs=2, seed=1)
    assert plan != plan_steps(20, 20, epochs=2, seed=2) and plan[0] != plan[1]


def test_batch_sizes_are_rounded_to_whole_groups():
    assert [to_groups(rows, 16) for rows in (1, 16, 23, 25, 64)] == [1, 1, 1, 2, 4]


@given(st.integers(1, 200), st.integers(1, 3), st.integers(1, 4))
def test_rows_are_cut_into_equal_passes_with_little_padding(rows, updates, processes):
    update, micro = split_rows(rows, updates, processes, micro_batch_size=8)
    assert 1 <= micro <= 8 and update % (micro * processes) == 0
    assert 0 <= updates * update - rows <= updates * update // micro


@pytest.mark.parametrize(
    ("groups", "groups_per_update", "updates"),
    [(64, 8, 8), (63, 8, 8), (8, 8, 1), (3, 8, 1), (2, 0.25, 2), (64, 64, 1)],
    ids=["whole", "nearly whole", "an eighth", "less", "not less than a group", "one update"],
)
def test_a_batch_that_data_do_not_fill_has_fewer_updates(groups, groups_per_update, updates):
    assert updates_of(groups, groups_per_update) == updates


def test_updates_of_a_batch_hold_rows_of_all_its_groups_each_in_the_order_of_their_lengths():
    order = mixed(96, processes=2, seed=[3, 1])
    assert sorted(order[:48]) == list(range(48)), "rows stay on their process"
    assert sorted(order[48:]) == list(range(48, 96))
    updates = [order[:24], order[24:48]]
    assert all({row // 8 for row in update} == set(range(6)) for update in updates), "groups of eight rows"
    assert order != mixed(96, processes=2, seed=[3, 2])
    lengths = [row % 7 for row in order]
    for block in np.array(by_length(lengths, 24)).reshape(-1, 24):
        assert np.ptp(block // 24) == 0 and np.all(np.diff(np.array(lengths)[block]) >= 0)


# --- what is compared


@given(st.floats(0, 0.99), st.integers(0, 4), st.integers(2, 5), st.sampled_from([1e-5, 1e-4, 1e-3, 1 / 200, 0.01]))
def test_the_smallest_difference_of_two_scores_is_a_signal_and_what_rounding_makes_is_none(low, at, many, gap):
    rewards = [low] * many
    assert not has_signal(rewards)
    rewards[at % many] += gap
    assert has_signal(rewards)
    rewards[at % many] = low + 1e-9
    assert not has_signal(rewards)


@pytest.mark.parametrize(
    ("by_seat", "expected"), [(False, [[0.5, 0.25, 0.75]]), (True, [[0.5, 0.25, 0.75], [0.125, 0.625]])]
)
def test_where_rewards_differ_between_seats_each_seat_is_a_group_and_else_an_episode_counts_once(by_seat, expected):
    first = {0: 0.5, 1: 0.25, 2: 0.75}
    second = {0: 0.125, 2: 0.625} if by_seat else first
    rewards = [(episode, seat, reward) for seat, of in enumerate((first, second)) for episode, reward in of.items()]
    rows = [Scored(0, episode, seat, reward, by_seat) for episode, seat, reward in rewards]
    assert [[*group.values()] for group in groups_of(rows).values()] == expected


@given(st.dictionaries(st.integers(0, 20), st.sampled_from([0.0, 0.5, 1.0]), min_size=1), st.integers(0, 8))
def test_the_best_episodes_score_no_less_than_the_others(rewards, best):
    chosen = best_episodes(rewards, best)
    assert len(chosen) == (min(best, len(rewards)) if best else len(rewards))
    others = rewards.keys() - chosen
    assert not others or min(rewards[one] for one in chosen) >= max(rewards[one] for one in others)


def test_partners_and_where_rewards_differ_seats_are_compared_apart():
    rows = [Scored(0, episode, seat, [0.1, 0.9][(seat + episode) % 2], True) for episode in (0, 1) for seat in (0, 1)]
    assert best_of_groups(rows, 1) == [False, True, True, False]
    rows = [Scored(0, episode, 0, reward, partner=partner) for episode, (reward, partner) in enumerate(
        [(0.1, "a"), (0.2, "a"), (0.8, "b"), (0.9, "b")])]  # fmt: skip
    assert best_of_groups(rows, 1) == [False, True, False, True]


@given(st.integers(1, 40), st.floats(0, 0.99))
def test_one_state_at_least_is_trained_on_and_one_is_held_out_if_any_are_to_be(groups, share):
    names = np.arange(groups)
    asked = max(1, round(share * groups)) if share else 0
    assert len(held_out([*names, *names], share, 0)) == min(asked, groups - 1)
