"""The advantages that verl's own GRPO gives to the rows of games whose seats have rewards of their own, or share one.

Rows go the way of a training: read into groups, handed to verl under its own keys. Nothing is trained.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from selfplay_pipeline.convert.rows import SCHEMA

EPISODES = 4
GROUPS = 6
Key = tuple[int, int, int]
"""Group, play and seat of a row."""


def write_rows(path: Path, rewards: dict[Key, float], *, shared: bool) -> Path:
    """A row for each reward, of random tokens."""
    rng = np.random.default_rng(0)
    rows = []
    for (group, episode, seat), reward in rewards.items():
        mask = [1] * 3 + [0] * int(rng.integers(1, 9)) + [1] * int(rng.integers(1, 12))
        rows.append(
            {
                "data_source": "selfplay",
                "prompt": [{"role": "system", "content": "w2"}],
                "messages": [{"role": "system", "content": "w2"}],
                "agent_name": "selfplay",
                "reward_model": {
                    "style": "rule", "ground_truth": "", "normalized_reward": reward, "game_state": "{}",
                },
                "extra_info": {
                    "index": group, "episode_id": f"t-g{group:06d}-p{episode}", "seat": seat, "episode": episode,
                    "status": "agreed", "episodes_per_state": EPISODES, "num_turns": 4,
                },
                "prompt_ids": [2, 3],
                "response_ids": [2] * len(mask),
                "response_mask": mask,
                "response_logprobs": [-1.0 * own for own in mask],
                "sampling_temperature": 0.7,
            }
        )  # fmt: skip
    facts = {"schema_version": 1, "temperature": 0.7, "episodes_per_state": EPISODES, "shared_reward": shared}
    table = pa.Table.from_pylist(rows, SCHEMA)
    pq.write_table(table.replace_schema_metadata({b"selfplay": json.dumps(facts).encode()}), path)
    return path


def handed_to_verl(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, Any]], list[Key]]:
    """The keys and fields of all groups with a signal, as the replay manager stores them, and whose rows they are."""
    from selfplay_pipeline.train.verl_ext import replay

    keys: list[str] = []
    fields: list[dict[str, Any]] = []

    def put(**given: Any) -> None:
        keys.extend(given["keys"])
        fields.extend(given["fields"])

    monkeypatch.setattr(replay.tq, "kv_batch_put", put)
    monkeypatch.setattr(replay.tq, "kv_put", lambda **given: None)
    monkeypatch.setattr(replay, "list_of_dict_to_tensordict", lambda given: given)
    data = SimpleNamespace(train_files=[str(path)], selfplay=SimpleNamespace(keep_zero_signal=False))
    manager = replay.ReplayManager(SimpleNamespace(data=data))
    groups = manager._dataset.groups
    uids = [f"uid-{position}" for position in range(len(groups))]
    manager.generate_sequences({"uid": uids, "position": list(range(len(groups))), "global_steps": 1})
    of = {uid: group.index for uid, group in zip(uids, groups, strict=True)}
    parts = [key.rsplit("_", 2) for key in keys]
    return keys, fields, [(of[uid], int(episode), int(seat)) for uid, episode, seat in parts]


def verls_advantages(keys: Sequence[str], fields: Sequence[dict[str, Any]]) -> list[float]:
    """Of each row, the same on all of its own tokens and 0 elsewhere."""
    import torch
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    def padded(name: str) -> Any:
        return torch.nn.utils.rnn.pad_sequence([torch.as_tensor(row[name]) for row in fields], batch_first=True)

    data = DataProto.from_dict(
        tensors={"response_mask": padded("response_mask"), "token_level_rewards": padded("rm_scores")},
        non_tensors={"uid": np.array([key.rsplit("_", 2)[0] for key in keys], dtype=object)},
    )
    given = compute_advantage_for_multi_trajectories(data, list(keys), "grpo", num_repeat=EPISODES).batch["advantages"]
    own = data.batch["response_mask"].bool()
    for values, mask in zip(given, own, strict=True):
        assert bool((values[mask] == values[0]).all())
        assert not bool(values[~mask].any())
    found: list[float] = given[:, 0].tolist()
    return found


def test_rewards_of_their_own_are_compared_with_the_same_seat_of_the_other_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    rewards = {
        (group, episode, seat): float(rng.integers(0, 11)) / 10
        for group in range(GROUPS)
        for episode in range(EPISODES)
        for seat in (0, 1)
        if (group, episode, seat) != (2, 1, 1)  # it never spoke
    }
    rewards |= {
        (3, episode, 0): 0.5 for episode in range(EPISODES)
    }  # no signal for this seat; the other one keeps its own
    path = write_rows(tmp_path / "train.parquet", rewards, shared=False)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert set(rows) == {key for key in rewards if (key[0], key[2]) != (3, 0)}
    compared = defaultdict(list)
    for (group, _, seat), reward in rewards.items():
        compared[group, seat].append(reward)
    for (group, episode, seat), found in zip(rows, verls_advantages(keys, fields), strict=True):
        same_seat = np.array(compared[group, seat])
        expected = (rewards[group, episode, seat] - same_seat.mean()) / (same_seat.std(ddof=1) + 1e-6)
        assert found == pytest.approx(expected, abs=1e-5)


def test_a_shared_reward_gives_the_advantages_of_one_group_a_state_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Revision 671181a, which knew shared rewards only, had one uid for all rows of a state, in the file's order."""
    rng = np.random.default_rng(2)
    of_episode = {(group, episode): float(rng.uniform()) for group in range(GROUPS) for episode in range(EPISODES)}
    rewards = {
        (*place, seat): reward for place, reward in of_episode.items() for seat in (0, 1) if (*place, seat) != (2, 1, 1)
    }
    path = write_rows(tmp_path / "train.parquet", rewards, shared=True)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert rows == list(rewards)
    then = [f"state-{group}_{episode}_{seat}" for group, episode, seat in rewards]
    assert verls_advantages(keys, fields) == verls_advantages(then, fields)
    found = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    assert all(
        found[group, episode, 0] == found.get((group, episode, 1), found[group, episode, 0])
        for group, episode in of_episode
    )
