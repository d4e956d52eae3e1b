"""The loop opposite a partner that is not trained: only seat 0 is played, trained and evaluated."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.loop import run_iterate

TINY = Path("data/tiny_model")


@dataclass
class Run:
    path: Path
    checkpoint: Path


@pytest.fixture(scope="module")
def run(_session_server, loop_with_trainer, tmp_path_factory) -> Run:
    _session_server.restore()
    path = tmp_path_factory.mktemp("opposite")
    config = load_config(
        "tiny_shy",
        {
            "model": str(TINY),
            "iterate.num_iterations": 1,
            "evaluate.monitor_states": 8,
            "generate.num_episodes": 32,
            "generate.episodes_per_state": 4,
            "convert.val_fraction": 0.0,
            "train.train_batch_size": 64,
            "train.learning_rate": 3e-4,
            "train.keep_zero_signal": True,
            "engine.server_url": [_session_server.url],
        },
    )
    return Run(path, Path(asyncio.run(run_iterate(config, path, loop_with_trainer)).checkpoint(1)))


def test_the_policy_holds_seat_0_in_all_episodes_and_the_partner_keeps_its_rules(run):
    played = list(read_episodes(run.path / "iter_1" / "selfplay_games.jsonl"))
    assert len(played) == 32
    game = make_game(load_config("tiny_shy", {}).game)
    for episode in played:
        assert episode.players == ["policy", "shy"]
        assert [trajectory.seat for trajectory in episode.trajectories] == [0]
        counts = asking(episode.turns, game.state_from_json(episode.state), 0)
        assert counts.leaks == 0
        assert all(turn.finish_reason == "scripted" for turn in episode.turns if turn.seat == 1)


def test_one_row_a_game_is_trained_on_and_the_weights_move(run):
    rows = pq.read_table(run.path / "iter_1" / "train.parquet").to_pylist()
    assert len(rows) == 32
    assert {row["extra_info"]["seat"] for row in rows} == {0}
    before, after = (load_file(folder / "model.safetensors") for folder in (TINY, run.checkpoint))
    assert any(not after[name].equal(before[name]) for name in before)


def test_evaluations_are_opposite_the_same_partner_from_the_same_seat(run):
    for iteration in (0, 1):
        for mode in ("sampled", "greedy"):
            played = list(read_episodes(run.path / f"iter_{iteration}" / "evaluation" / f"{mode}.jsonl"))
            assert len(played) == 8
            assert {tuple(episode.players) for episode in played} == {("policy", "shy")}
            assert all(episode.outcome.status != Status.ENGINE_FAILURE for episode in played)


def test_questions_stand_in_the_metrics_of_every_iteration(run):
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["held_out_questions"]["value"] == 0, "the shipped model never asks"
    assert "held_out_questions" in lines[1]
    asked = lines[1]["questions_per_episode"] > 0
    for share_of_questions in ("specific_questions", "learned_per_question"):
        assert (share_of_questions in lines[1]) == asked, "of no question there is no share"
    assert lines[1]["leaks_per_message"] == 0


def test_an_unknown_partner_is_refused_before_anything_is_written(tmp_path):
    config = load_config("tiny_shy", {"iterate.partner": "nobody"})
    with pytest.raises(UserError, match=r"no scripted player or checkpoint 'nobody'"):
        asyncio.run(run_iterate(config, tmp_path / "run"))
    assert not (tmp_path / "run").exists()
