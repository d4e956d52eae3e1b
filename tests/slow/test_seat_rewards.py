"""One iteration of a game in which each seat has a reward of its own: played, converted and trained with the real verl.

A model in this process episodes it, since the tests' server has the vocabulary of another game.
"""

import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file

from test_online_loop import RecordedClient, advantages, cleared, play, verl_queue  # noqa: F401

from selfplay_pipeline.config import load_config
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import read_episodes
from selfplay_pipeline.iterate.run import run_iterate

TINY = Path("data/tiny_bargaining_model")
EPISODES = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("selfish")
    (folder / "config.yaml").write_text("base: tiny_bargaining\ngame: {name: bargaining, reward: selfish}")
    config = load_config(
        str(folder / "config.yaml"),
        {
            "engine.kind": "transformers",
            "generate.num_episodes": 16,
            "generate.episodes_per_state": EPISODES,
            "generate.temperature": 1.0,
            "iterate.num_iterations": 1,
            "iterate.evaluate_every": 0,
            "train.train_batch_size": 16,
            "train.learning_rate": 3e-4,
            "train.dump_rows": True,
        },
    )
    run_iterate(config, folder / "run")
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


def test_the_same_episodes_online_have_the_advantages_that_offline_training_gave_them(run, cleared):  # noqa: F811
    records = list(read_episodes(run / "iter_1" / "selfplay_games.jsonl"))
    game = make_game(load_config(str(run.parent / "config.yaml")).game)
    online = play(
        cleared, RecordedClient(records), records, game=game,
        verl=(f"actor_rollout_ref.model.path={TINY}", f"actor_rollout_ref.rollout.n={EPISODES}"),
    )  # fmt: skip
    masks, rewards, extra = (online.column(name) for name in ("response_mask", "rm_scores", "extra_fields"))
    assert online.column("uid") == {key: key.rsplit("_", 2)[0] for key in online.batch.keys}
    found = advantages(
        online.batch.keys,
        [{"response_mask": np.array(masks[key]), "rm_scores": rewards[key]} for key in online.batch.keys],
    )
    ours = {}
    for key, values in found.items():
        group, episode = key.split("_")[0].removeprefix("g"), key.rsplit("_", 2)[1]
        own = np.array(values)[: len(masks[key])][np.array(masks[key]) == 1]
        ours[int(group), int(episode), extra[key]["player_index"]] = own.tolist()
    dumped = [json.loads(line) for line in next(run.rglob("trained_rows.jsonl")).read_text().splitlines()]
    assert ours == {(row["group"], row["episode"], row["seat"]): row["advantages"] for row in dumped}
    rewarded = np.mean([record.outcome.normalized_reward for record in records])
    assert online.metrics["selfplay/reward"] == pytest.approx(rewarded), "the mean of both seats"
    assert online.metrics["selfplay/episodes"] == len(records)
    assert online.metrics["selfplay/groups_lost"] == online.metrics["selfplay/episodes_lost"] == 0


def test_the_weights_move(run):
    before, after = (load_file(folder / "model.safetensors") for folder in (TINY, run / "iter_1" / "checkpoint"))
    assert any(not after[name].equal(before[name]) for name in before)
