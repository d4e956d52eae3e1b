"""Where seats have rewards of their own, the policy's are those of the seats that it held."""

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from selfplay_pipeline.asking.sources import records_of
from selfplay_pipeline.cli import app
from selfplay_pipeline.config import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.evaluate.crossplay import run_crossplay
from selfplay_pipeline.evaluate.states import sample_held_out
from selfplay_pipeline.generate.records import EpisodeRecord, read_episodes
from selfplay_pipeline.generate.seats import check_seats
from selfplay_pipeline.generate.summary import Summary
from selfplay_pipeline.metrics.signal import Signal
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


def test_the_mean_reward_of_episodes_is_the_policys(records):
    own = [record.outcome.reward_of(0) for record in records]
    both = [record.outcome.normalized_reward for record in records]
    assert sum(own) != pytest.approx(sum(both))
    assert summary_of(records).mean_reward == pytest.approx(sum(own) / len(own))


def test_so_it_is_in_the_report_and_in_the_analysis_of_questions(records, tmp_path):
    path = tmp_path / "episodes.jsonl"
    path.write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    (file,) = discover(path).files
    own = [record.outcome.reward_of(0) for record in records]
    assert scan(file, lambda size: None).rewards == own
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


def test_a_cell_of_the_cross_play_is_the_reward_of_the_player_in_its_row(tmp_path):
    (tmp_path / "run.yaml").write_text(SELFISH)
    config = load_config(str(tmp_path / "run.yaml"), {})
    states = sample_held_out(config, 20)
    result = asyncio.run(run_crossplay(config, ["greedy", "sharing"], states, 1, tmp_path / "out"))
    (_, first), (other, _) = result.rewards
    assert first.value > 0.8 > 0.6 > other.value


def test_three_different_checkpoints_are_refused(tmp_path):
    config = load_config("tiny", {})
    copies = [tmp_path / name for name in ("one", "two")]
    for copy in copies:
        copy.symlink_to(Path("data/tiny_model").resolve())
    with pytest.raises(UserError, match="at most two"):
        check_seats(config, "data/tiny_model", ["policy", *map(str, copies)])
