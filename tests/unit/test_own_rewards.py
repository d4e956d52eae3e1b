"""Where seats have rewards of their own, the policy's are those of the seats that it held."""

import asyncio
import json
from contextlib import nullcontext

import pyarrow.parquet as pq
import pytest
from factories import TINY, byte_chat, write_episodes
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import replay
from selfplay_pipeline.convert.rows import METADATA_KEY
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.registry import parse_game_config
from selfplay_pipeline.generate.records import EpisodeRecord, parse_episode, read_episodes
from selfplay_pipeline.generate.seats import check_seats
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.signal import Scored, Signal, groups_of, has_signal
from selfplay_pipeline.report.questions.analysis import records_of
from selfplay_pipeline.report.scan import scan
from selfplay_pipeline.report.sources import discover

SELFISH = "base: tiny_bargaining\ngame: {name: bargaining, reward: selfish}\n"


@pytest.fixture(scope="module")
def records(tmp_path_factory) -> list[EpisodeRecord]:
    """Selfish episodes in which the first seat takes what it likes; it is called the policy's."""
    folder = tmp_path_factory.mktemp("selfish")
    (folder / "run.yaml").write_text(SELFISH)
    told = ["--num-episodes", "12", "--episodes-per-state", "4", "--output", str(folder / "episodes.jsonl")]
    who = ["--config", str(folder / "run.yaml"), "--player", "random", "--player", "sharing"]
    done = CliRunner().invoke(app, ["generate", *who, *told])
    assert done.exit_code == 0, done.output
    found = list(read_episodes(folder / "episodes.jsonl"))
    return [record.model_copy(update={"players": ["policy", "sharing"]}) for record in found]


def with_rewards(record: EpisodeRecord, first: float, second: float) -> EpisodeRecord:
    rewards = {"rewards": [first, second] if first != second else None, "normalized_reward": (first + second) / 2}
    return record.model_copy(update={"outcome": record.outcome.model_copy(update=rewards)})


def summary_of(records: list[EpisodeRecord]) -> Summary:
    summary = Summary()
    for record in records:
        summary.add(record)
    return summary


def test_the_reward_of_an_episode_is_the_policys_in_its_summary_the_report_and_the_analysis_of_questions(
    records, tmp_path
):
    own = [record.outcome.reward_of(0) for record in records]
    assert sum(own) != pytest.approx(sum(record.outcome.normalized_reward for record in records))
    assert summary_of(records).mean_reward == pytest.approx(sum(own) / len(own))
    (file,) = discover(write_episodes(tmp_path / "episodes.jsonl", records)).files
    assert [place.reward for place in scan(file, lambda size: None).places] == own
    assert [found.reward for record in records for found in records_of(record, 0)] == own


@pytest.mark.parametrize(
    ("rewards", "signal"),
    [
        ([(0.5, 0.1), (0.5, 0.9)], False),
        ([(0.5, 0.5), (0.5, 0.9)], False),
        ([(0.4, 0.6), (0.5, 0.5)], True),
        ([(0.4, 0.4), (0.5, 0.5)], True),
        ([(0.5, 0.5), (0.5, 0.5)], False),
    ],
)
def test_a_group_has_signal_where_the_policys_rewards_differ_whatever_its_partners_do(records, rewards, signal):
    group = [with_rewards(record, *pair) for record, pair in zip(records[:2], rewards, strict=True)]
    assert summary_of(group).signal == Signal(groups=1, without=not signal)


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


@pytest.mark.parametrize("by", [0.1, -0.1])
def test_rewards_with_another_mean_than_the_episodes_are_refused(records, by):
    record = next(
        record for record in records if record.outcome.rewards and 0.1 < record.outcome.normalized_reward < 0.9
    )
    outcome = record.outcome.model_copy(update={"normalized_reward": record.outcome.normalized_reward + by})
    line = record.model_copy(update={"outcome": outcome}).model_dump_json().encode()
    with pytest.raises(ValueError, match="but 'rewards' have another mean"):
        parse_episode(line)


def test_rows_have_the_rewards_of_their_seats_even_if_the_last_episode_shared_one(records, tmp_path):
    game = BargainingGame(parse_game_config('{"name": "bargaining", "reward": "selfish"}'))
    without = {"status": Status.TURN_LIMIT, "proposal": None, "score": 0.0, "rewards": None, "normalized_reward": 0.0}
    played = [
        record.model_copy(update={"players": ["policy"] * 2, "trajectories": replay(record, game, byte_chat())})
        for record in records[:8]
    ]
    assert any(record.outcome.rewards for record in played[:-1])
    played[-1] = played[-1].model_copy(update={"outcome": played[-1].outcome.model_copy(update=without)})
    run_convert(write_episodes(tmp_path / "games.jsonl", played), tmp_path)
    table = pq.read_table(tmp_path / "train.parquet")
    assert json.loads(table.schema.metadata[METADATA_KEY])["shared_reward"] is False
    by_id = {record.episode_id: record.outcome for record in played}
    rows = [(row["extra_info"], row["reward_model"]["normalized_reward"]) for row in table.to_pylist()]
    assert [reward for _, reward in rows] == [by_id[info["episode_id"]].reward_of(info["seat"]) for info, _ in rows]
    assert len(rows) == 2 * len(played)


def test_a_cell_of_the_cross_play_is_the_reward_of_the_player_in_its_row(tmp_path):
    (tmp_path / "run.yaml").write_text(SELFISH)
    config = load_config(str(tmp_path / "run.yaml"), {})
    states = sample_held_out(config, 20)
    result = asyncio.run(run_crossplay(config, ["greedy", "sharing"], states, 1, tmp_path / "out"))
    (_, first), (other, _) = result.rewards
    assert first.value > 0.8 > 0.6 > other.value


@pytest.mark.parametrize(("attached", "enough"), [(0, True), (2, False), (3, True)])
def test_three_checkpoints_may_play_with_each_other_where_each_gets_a_server(attached, enough):
    urls = [f"http://127.0.0.1:{port}" for port in range(29_997, 29_997 + attached)]
    config = load_config("tiny", {"engine.server_url": urls})
    words = r"each of the 3 checkpoints .* needs a server of its own, and 2 are given"
    with nullcontext() if enough else pytest.raises(UserError, match=words):
        check_seats(config, TINY, ["policy", "data/tiny_shy_model", "data/tiny_honest_model"])
