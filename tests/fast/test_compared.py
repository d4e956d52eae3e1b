"""Which rows are compared with each other: the same everywhere, from one key."""

import pyarrow.parquet as pq
import pytest
from factories import make_episode, make_episodes, write_episodes

from selfplay_pipeline.convert.rows import PARTNER, SCHEMA
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.signal import Scored, comparison_key, groups_of
from selfplay_pipeline.train.groups import read_data

ROW = Scored(state=0, episode=0, seat=0, reward=0.5)


@pytest.mark.parametrize(
    ("other", "compared"),
    [
        (ROW._replace(episode=1), True),
        (ROW._replace(seat=1), True),
        (ROW._replace(reward=1.0), True),
        (ROW._replace(state=1), False),
        (ROW._replace(partner="shy"), False),
    ],
)
def test_rows_that_share_a_reward_are_compared_within_a_state_and_a_partner(other, compared):
    assert (comparison_key(ROW) == comparison_key(other)) is compared


@pytest.mark.parametrize(
    ("other", "compared"),
    [
        (ROW._replace(episode=1), True),
        (ROW._replace(seat=1), False),
        (ROW._replace(state=1), False),
        (ROW._replace(partner="shy"), False),
    ],
)
def test_rows_with_rewards_of_their_own_are_compared_within_a_seat_too(other, compared):
    rows = [row._replace(by_seat=True) for row in (ROW, other)]
    assert (comparison_key(rows[0]) == comparison_key(rows[1])) is compared


def test_an_episode_counts_once_in_a_group_however_many_of_its_seats_are_there():
    rows = [Scored(0, 0, 0, 0.5), Scored(0, 0, 1, 0.5), Scored(0, 1, 0, 1.0)]
    assert groups_of(rows) == {comparison_key(ROW): {0: 0.5, 1: 1.0}}


def test_groups_have_the_order_of_their_states_whatever_the_order_of_the_rows(tmp_path):
    run_convert(write_episodes(tmp_path / "games.jsonl", make_episodes(3, 2)), tmp_path)
    table = pq.read_table(path := tmp_path / "train.parquet")
    groups = read_data([path]).groups
    pq.write_table(table.take([*range(len(table))][::-1]), path)
    again = read_data([path]).groups
    assert [group.index for group in again] == [group.index for group in groups] == [0, 1, 2]


@pytest.fixture
def with_two_partners():
    """Three states of four episodes, in which the policy held seat 0 and two scripts the other in turn."""
    records = []
    for record in make_episodes(3, 4):
        seats = {"players": ["policy", ("sharing", "asker")[record.episode % 2]]}
        records.append(record.model_copy(update=seats | {"trajectories": record.trajectories[:1]}))
    return records


def test_episodes_of_one_state_with_different_partners_are_compared_apart_at_every_stage(with_two_partners, tmp_path):
    done = run_convert(write_episodes(tmp_path / "games.jsonl", with_two_partners), tmp_path)
    summary = Summary()
    for record in with_two_partners:
        summary.add(record)
    data = read_data([tmp_path / "train.parquet"])
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert {(row["extra_info"]["episode"] % 2, row[PARTNER]) for row in rows} == {(0, "sharing"), (1, "asker")}
    assert (done.groups, done.partners, summary.signal.groups, data.signal.groups) == (6, 2, 6, 6)
    assert done.groups_without_signal == summary.signal.without == data.signal.without
    assert "partners                    2, compared apart" in done.to_text()
    assert sorted(group.key.partner for group in data.groups) == ["asker"] * 3 + ["sharing"] * 3
    for group in data.groups:
        assert {rows[row][PARTNER] for row in group.rows} == {group.key.partner}


def test_a_placebo_exchanges_rewards_among_episodes_with_the_same_partner(with_two_partners, tmp_path):
    games = write_episodes(tmp_path / "games.jsonl", with_two_partners)
    found = []
    for name, placebo in (("true", False), ("placebo", True)):
        run_convert(games, tmp_path / name, placebo=placebo)
        data = read_data([tmp_path / name / "train.parquet"])
        found.append({group.key: sorted(group.rewards) for group in data.groups})
    assert found[0] == found[1]


def test_one_partner_in_each_state_is_not_written_since_it_separates_nothing(tmp_path):
    """So the rows of all files that there were before are as they were."""
    records = [
        record.model_copy(
            update={
                "players": ["policy", ("sharing", "asker")[record.group_index % 2]],
                "trajectories": record.trajectories[:1],
            }
        )
        for record in make_episodes(4, 2)
    ]
    done = run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    assert pq.read_schema(tmp_path / "train.parquet").names == SCHEMA.names
    assert done.partners == 0 and "partners" not in done.model_dump() and "partner" not in done.to_text()


def test_a_state_of_which_no_two_episodes_are_compared_is_refused(tmp_path):
    records = [
        make_episode(0, number).model_copy(
            update={"players": ["policy", name], "trajectories": make_episode(0, number).trajectories[:1]}
        )
        for number, name in enumerate(["sharing", "asker"])
    ]
    games = write_episodes(tmp_path / "games.jsonl", records)
    with pytest.raises(UserError, match="no two episodes of a state are compared with each other"):
        run_convert(games, tmp_path)
