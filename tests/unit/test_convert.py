"""Games to rows: groups stay whole, nothing is half-written, and what cannot be trained on is refused with a reason."""

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import (
    POLICY,
    Habits,
    episode_records,
    make_episode,
    make_episodes,
    make_random_episode,
    write_episodes,
)
from hypothesis import given
from hypothesis import strategies as st
from quick import examples
from reports import Reports
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import RewardConfig
from selfplay_pipeline.convert.placebo import permuted
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.reward import TrainedReward
from selfplay_pipeline.convert.rows import METADATA_KEY, PARTNER, SCHEMA, episode_to_rows
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core import reporting
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import BargainingConfig
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.signal import Scored, comparison_key, groups_of
from selfplay_pipeline.train.groups import read_data

GROUPS, EPISODES = 10, 4
ROW = Scored(state=0, episode=0, seat=0, reward=0.5)


@pytest.fixture
def games(tmp_path):
    return write_episodes(tmp_path / "games.jsonl", make_episodes(GROUPS, EPISODES))


def rows_of(folder):
    return {path.stem: pq.read_table(path).to_pylist() for path in folder.glob("*.parquet")}


def refuse(games, words):
    before = sorted(games.parent.iterdir())
    with pytest.raises(UserError, match=words):
        run_convert(games, games.parent)
    assert sorted(games.parent.iterdir()) == before, "nothing is left half-written"


def test_each_episode_becomes_two_rows_of_its_group_and_groups_are_never_split(games, tmp_path):
    report = run_convert(games, tmp_path, val_fraction=0.2)
    rows = rows_of(tmp_path)
    index = {name: {row["extra_info"]["index"] for row in part} for name, part in rows.items()}
    assert index["train"] | index["val"] == set(range(GROUPS))
    assert not index["train"] & index["val"]
    assert (len(index["val"]), report.val_rows, report.train_rows) == (2, len(rows["val"]), len(rows["train"]))
    whole = [row for part in rows.values() for row in part]
    seats = [(row["extra_info"]["episode_id"], row["extra_info"]["seat"]) for row in whole]
    assert sorted(set(seats)) == sorted(seats)
    facts = json.loads(pq.read_schema(tmp_path / "train.parquet").metadata[METADATA_KEY])
    assert facts == {
        "schema_version": 2,
        "game": "matching",
        "temperature": 1.0,
        "episodes_per_state": EPISODES,
        "shared_reward": True,
        "checkpoint": POLICY.checkpoint,
        "weights": POLICY.weights,
        "template": {"thinking": False, "template_args": {}, "date": "2024-07-26"},
    }
    assert (tmp_path / "convert_report.txt").read_text() == report.to_text()


def test_each_part_of_the_work_has_a_bar_with_one_total(games, tmp_path):
    with reporting.use(kept := Reports()):
        run_convert(games, tmp_path)
    bars = {(one.title, one.figures, one.total) for one in kept.seen}
    assert bars == {
        ("reading games.jsonl", "bytes", games.stat().st_size), ("writing train.parquet", "episodes", GROUPS * EPISODES)
    }  # fmt: skip
    assert all(any(one.done == one.total for one in kept.seen if one.title == title) for title, *_ in bars)


def test_by_default_every_group_is_trained_on_and_an_older_val_file_is_removed(games, tmp_path):
    run_convert(games, tmp_path, val_fraction=0.2)
    done = CliRunner().invoke(app, ["convert", str(games)])
    assert done.exit_code == 0, done.output
    rows = rows_of(tmp_path)
    assert rows.keys() == {"train"}, "verl cannot load a file without rows"
    assert {row["extra_info"]["index"] for row in rows["train"]} == set(range(GROUPS))


def test_the_order_of_the_lines_does_not_matter(games, tmp_path):
    run_convert(games, tmp_path)
    expected = rows_of(tmp_path)
    games.write_text("".join(reversed(games.read_text().splitlines(keepends=True))))
    run_convert(games, tmp_path)
    assert rows_of(tmp_path) == expected


@examples(60)
@given(episode_records())
def test_a_row_is_the_trajectory_of_a_seat_that_spoke(record):
    rows = episode_to_rows(record)
    spoke = [seat for seat in record.trajectories if seat.response_ids]
    assert [row["extra_info"]["seat"] for row in rows] == [seat.seat for seat in spoke]
    for row, seat in zip(rows, spoke, strict=True):
        assert row["prompt_ids"] + row["response_ids"] == seat.prompt_ids + seat.response_ids
        assert len(row["response_mask"]) == len(row["response_logprobs"]) == len(row["response_ids"])
        assert row["response_mask"][-1] == 1
        assert row["reward_model"]["normalized_reward"] == record.outcome.normalized_reward


def sampled(**changes):
    """Two episodes of one state, of which the second was sampled otherwise."""
    return [make_episode(0, 0), make_episode(0, 1, policy=POLICY.model_copy(update=changes))]


PAIR = [make_episode(0, 0), make_episode(0, 1)]
SELFISH = [make_random_episode(BargainingGame(BargainingConfig(reward="selfish")), 1, at, seed=at) for at in range(8)]
OTHER_STATE = make_episode(1, 2).model_copy(update={"group_index": 0})


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([*PAIR, PAIR[0]], "group 0 episode 0 occurs twice"),
        ([*PAIR, OTHER_STATE], r"jsonl:3: field 'state': group 0 has two different"),
        ([*PAIR, *SELFISH], r"jsonl: in an episode of matching all seats share one reward, and in one of barg"),
        (sampled(temperature=0.7), r"jsonl:2: .*temperature': 0.7, but 1.0 before"),
        (sampled(temperature=0.0), r"jsonl:2: field 'policy.temperature': greedy play cannot be trained on"),
        *((sampled(**change), r"jsonl:2: field 'policy': sampled with top_p, top_k or a penalty")
          for change in ({"top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 1.1})),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_on_is_refused_with_its_line_and_leaves_nothing(tmp_path, episodes, words):
    refuse(write_episodes(tmp_path / "games.jsonl", episodes), words)


@pytest.mark.parametrize("bad", ['{"half": ', "{}", "nan"])
def test_a_bad_line_stops_with_its_number_or_is_left_out_and_named(games, tmp_path, bad):
    lines = games.read_text().splitlines()
    games.write_text("\n".join([*lines[:6], bad, *lines[6:]]) + "\n")
    refuse(games, r"games.jsonl:7: .*--skip-bad")
    report = run_convert(games, tmp_path, skip_bad=True)
    assert (report.episodes, len(report.bad_lines)) == (GROUPS * EPISODES, 1)
    assert "games.jsonl:7" in (tmp_path / "convert_report.txt").read_text()


def test_groups_whose_episodes_scored_alike_are_counted(tmp_path):
    silent = make_episodes(3, 2, habits=Habits(talk=1.0, spoil=0, cut=0))
    assert run_convert(write_episodes(tmp_path / "games.jsonl", silent), tmp_path).groups_without_signal == 3


def rewards_of(folder):
    """Of each state and partner, the reward of each episode, in each of its rows."""
    found: dict[tuple[int, str], dict[int, set[float]]] = {}
    for row in rows_of(folder)["train"]:
        info = row["extra_info"]
        group = found.setdefault((info["index"], row.get(PARTNER, "")), {})
        group.setdefault(info["episode"], set()).add(row["reward_model"]["normalized_reward"])
    return found


@pytest.mark.parametrize("kind", ["one game", "three seats, then two", "two seats, then three", "two partners"])
def test_a_placebo_exchanges_rewards_within_groups_and_says_so(kind, with_two_partners, tmp_path):
    game, two = make_game(load_config("tiny_mediation", {}).game), [*make_episodes(GROUPS, EPISODES)]
    three = [make_random_episode(game, 100 + at // 4, at % 4, seed=at) for at in range(12)]
    games = {"one game": two, "three seats, then two": three + two, "two partners": with_two_partners}
    path = write_episodes(tmp_path / "games.jsonl", games.get(kind, two + three))
    reports = [run_convert(path, tmp_path / str(number), placebo=number == 1, seed=1) for number in (0, 1)]
    true, false = (rewards_of(tmp_path / name) for name in ("0", "1"))
    assert all(len(rewards) == 1 for group in false.values() for rewards in group.values()), "seats share a reward"
    true, false = ({name: [*map(min, group.values())] for name, group in all.items()} for all in (true, false))
    assert true != false
    assert {name: sorted(group) for name, group in true.items()} == {
        name: sorted(group) for name, group in false.items()
    }
    assert reports[0].groups_without_signal == sum(len(set(group)) == 1 for group in true.values())
    assert reports[0].model_dump(exclude={"placebo"}) == reports[1].model_dump(exclude={"placebo"})
    facts = [
        json.loads(pq.read_schema(tmp_path / name / "train.parquet").metadata[METADATA_KEY]) for name in ("0", "1")
    ]
    assert [one.get("placebo") for one in facts] == [None, True]


def test_a_placebo_permutes_each_group_in_its_own_way():
    rewards = {number: float(number) for number in range(6)}
    assert len({tuple(permuted(rewards, 0, group).values()) for group in range(8)}) > 1


def test_a_placebo_is_the_same_whenever_it_is_made_and_another_with_another_seed(games, tmp_path):
    run_convert(games, tmp_path / "once", placebo=True, seed=1)
    run_convert(games, tmp_path / "other", placebo=True, seed=2)
    games.write_text("".join(reversed(games.read_text().splitlines(keepends=True))))
    run_convert(games, tmp_path / "again", placebo=True, seed=1)
    assert rewards_of(tmp_path / "once") == rewards_of(tmp_path / "again") != rewards_of(tmp_path / "other")


@given(st.integers(2, 8), st.integers(0, 99), st.integers(0, 99))
def test_seats_of_an_episode_get_the_rewards_of_one_episode(episodes, seed, group):
    first, second = (permuted({number: begin + number for number in range(episodes)}, seed, group) for begin in (0, 10))
    assert [*first] == [*range(episodes)] == sorted(first.values())
    assert second == {number: reward + 10 for number, reward in first.items()}


def test_what_an_episode_gets_as_placebo_does_not_depend_on_how_good_it_was():
    """Each of eight episodes gets each of the rewards as often: 1,000 times in 8,000 groups, ± 4 standard errors."""
    rewards = {number: float(number) for number in range(8)}
    found = np.array([[*permuted(rewards, 0, group).values()] for group in range(8_000)]).T
    counts = np.array([[(row == reward).sum() for reward in range(8)] for row in found])
    assert abs(counts - 1_000).max() < 4 * np.sqrt(8_000 / 8 * 7 / 8)


@pytest.mark.parametrize(("tokens", "trained", "share"), [(0, 0, 0), (10, 10, 0), (10, 4, 0.6), (10, 0, 1)])
def test_the_masked_share_is_that_of_tokens_which_are_not_trained_on(tokens, trained, share):
    assert Converted(tokens=tokens, trained_tokens=trained).masked_share == pytest.approx(share)


@pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5])
def test_a_report_counts_what_the_files_hold(tmp_path, fraction):
    episodes = [*make_episodes(5, 3), make_episode(5, 1), make_episode(6, 0)]
    report = run_convert(write_episodes(tmp_path / "games.jsonl", episodes), tmp_path / "out", val_fraction=fraction)
    rows = rows_of(tmp_path / "out")
    every = [row for found in rows.values() for row in found]
    groups = {name: len({row["extra_info"]["index"] for row in found}) for name, found in rows.items()}
    assert (report.train_rows, report.val_rows) == (len(rows["train"]), len(rows.get("val", [])))
    assert (report.train_groups, report.val_groups) == (groups["train"], groups.get("val", 0))
    assert report.tokens == sum(len(row["prompt_ids"]) + len(row["response_ids"]) for row in every)
    assert report.trained_tokens == sum(sum(row["response_mask"]) for row in every)
    assert (report.episodes, report.episodes_per_state) == (len(episodes), 3)
    assert (report.groups, report.single_episode_groups_dropped) == (sum(groups.values()) + 2, 2)
    assert {row["extra_info"]["index"] for row in every} == set(range(5)), "a group of one episode is dropped"
    assert ("val" in rows) == (fraction > 0)


def test_an_episode_without_a_turn_of_the_policy_is_in_no_group(tmp_path):
    silent = [make_episode(1, 1, ends_after=0), make_episode(2, 2, ends_after=0)]
    episodes = [*make_episodes(1, 2), make_episode(1, 0), make_episode(2, 0), make_episode(2, 1), *silent]
    report = run_convert(write_episodes(tmp_path / "games.jsonl", episodes), tmp_path / "out")
    assert (report.episodes, report.without_turn) == (7, 2)
    assert (report.groups, report.single_episode_groups_dropped, report.train_groups) == (3, 1, 2)
    assert {row["extra_info"]["index"] for row in rows_of(tmp_path / "out")["train"]} == {0, 2}
    data = read_data([tmp_path / "out" / "train.parquet"])
    assert (len(data.groups), data.signal.without) == (2, report.groups_without_signal - 1)


# --- which rows are compared ---------------------------------------------------------------------------------


@pytest.mark.parametrize("by_seat", [False, True])
@pytest.mark.parametrize("change", [{"episode": 1}, {"reward": 1.0}, {"state": 1}, {"partner": "shy"}, {"seat": 1}])
def test_rows_of_one_state_and_one_partner_are_compared_and_with_own_rewards_within_a_seat(by_seat, change):
    row, apart = ROW._replace(by_seat=by_seat), {"state", "partner", *(["seat"] if by_seat else [])}
    assert (comparison_key(row) == comparison_key(row._replace(**change))) is not bool(apart & change.keys())


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


def opposite(record, number):
    """The episode with the policy in seat 0 and one of two scripts in the other."""
    players = ["policy", ("sharing", "asker")[number % 2]]
    return record.model_copy(update={"players": players, "trajectories": record.trajectories[:1]})


@pytest.fixture
def with_two_partners():
    """Three states of four episodes, with the two partners in turn."""
    return [opposite(record, record.episode) for record in make_episodes(3, 4)]


def test_the_mean_trained_reward_leaves_the_partners_seat_out(with_two_partners, tmp_path):
    (tmp_path / "rewards.py").write_text("def reward(state, turns, outcome):\n    return [1.0, 0.0]\n")
    games = write_episodes(tmp_path / "games.jsonl", with_two_partners)
    reward = TrainedReward(RewardConfig(path=str(tmp_path / "rewards.py")))
    assert run_convert(games, tmp_path, reward=reward).trained_reward == 1.0


def test_rows_are_read_where_an_earlier_episode_of_each_group_is_missing(tmp_path):
    played = [make_episode(group, number) for group in range(4) for number in (0, 2)]
    report = run_convert(write_episodes(tmp_path / "games.jsonl", played), tmp_path)
    assert report.episodes_per_state == 3 and read_data([tmp_path / "train.parquet"]).groups


def test_episodes_of_one_state_with_different_partners_are_compared_apart_at_every_stage(with_two_partners, tmp_path):
    done = run_convert(write_episodes(tmp_path / "games.jsonl", with_two_partners), tmp_path)
    summary = Summary()
    for record in with_two_partners:
        summary.add(record)
    data = read_data([tmp_path / "train.parquet"])
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert {(row["extra_info"]["episode"] % 2, row[PARTNER]) for row in rows} == {(0, "1: sharing"), (1, "1: asker")}
    assert (done.groups, done.partners, summary.signal.groups, data.signal.groups) == (6, 2, 6, 6)
    assert done.groups_without_signal == summary.signal.without == data.signal.without
    assert sorted(group.key.partner for group in data.groups) == ["1: asker"] * 3 + ["1: sharing"] * 3
    for group in data.groups:
        assert {rows[row][PARTNER] for row in group.rows} == {group.key.partner}


def test_one_partner_in_each_state_is_not_written_since_it_separates_nothing(tmp_path):
    records = [opposite(record, record.group_index) for record in make_episodes(4, 2)]
    done = run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path)
    assert pq.read_schema(tmp_path / "train.parquet").names == SCHEMA.names
    assert done.partners == 0


def test_a_state_of_which_no_two_episodes_are_compared_is_refused(tmp_path):
    records = [opposite(record, record.episode) for record in PAIR]
    refuse(write_episodes(tmp_path / "games.jsonl", records), "no two episodes of a state are compared with each other")
