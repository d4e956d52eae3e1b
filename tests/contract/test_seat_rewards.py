"""One iteration of a game in which each seat has a reward of its own: played, converted and trained with the real verl.

A model in this process plays it, and the game takes any text, so that a model which never learned it gets rewards.
"""

import asyncio
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from factories import TINY
from safetensors.torch import load_file

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import WRITES_ROWS
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.loop import run_iterate

GAME = Path(__file__).parents[1] / "support" / "own_rewards.py"


@pytest.fixture(scope="module")
def run(loop_with_trainer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "config.yaml").write_text(f"base: tiny\nmodel: {TINY}\ngame: {{path: {GAME}}}")
    config = load_config(
        str(folder / "config.yaml"),
        {
            "engine.kind": "transformers",
            "generate.num_episodes": 16,
            "generate.episodes_per_state": 4,
            "generate.temperature": 1.0,
            "iterate.num_iterations": 1,
            "iterate.evaluate_every": 0,
            "train.train_batch_size": 16,
            "train.learning_rate": 3e-4,
            "train.overrides": [WRITES_ROWS],
        },
    )
    asyncio.run(run_iterate(config, folder / "run", loop_with_trainer))
    return folder / "run"


def test_the_seats_of_an_episode_have_rewards_of_their_own_that_the_rows_carry(run):
    games = {game.episode_id: game for game in read_episodes(run / "iter_1" / "selfplay_games.jsonl")}
    assert len(games) == 16
    assert any(game.outcome.rewards for game in games.values())
    for row in pq.read_table(run / "iter_1" / "train.parquet").to_pylist():
        info = row["extra_info"]
        reward = games[info["episode_id"]].outcome.reward_of(info["seat"])
        assert row["reward_model"]["normalized_reward"] == reward


def test_verl_compares_a_seat_with_the_same_seat_of_the_other_episodes(run):
    rewards = defaultdict(dict)
    for row in pq.read_table(run / "iter_1" / "train.parquet").to_pylist():
        info = row["extra_info"]
        rewards[info["index"], info["seat"]][info["episode"]] = row["reward_model"]["normalized_reward"]
    dumped = [json.loads(line) for line in next(run.rglob("trained_rows.jsonl")).read_text().splitlines()]
    assert dumped
    for row in dumped:
        episodes = rewards[row["group"], row["seat"]]
        values = np.array([*episodes.values()])
        expected = (episodes[row["episode"]] - values.mean()) / (values.std(ddof=1) + 1e-6)
        assert row["advantages"] == pytest.approx([expected] * len(row["advantages"]), abs=1e-5)


def test_the_weights_move(run):
    before, after = (load_file(folder / "model.safetensors") for folder in (Path(TINY), run / "iter_1" / "checkpoint"))
    assert any(not after[name].equal(before[name]) for name in before)
