"""The advantages that verl's own GRPO gives to the rows of games whose seats have rewards of their own, or share one.

Rows go the way of a training, offline or online, until they are handed to verl under its own keys. Nothing is trained.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training_rows import training_row, write_training_rows

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.rows import TRAINED
from selfplay_pipeline.games.bargaining.rules import BargainingConfig
from selfplay_pipeline.games.base import Game, GameSettings, Outcome
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.metrics import signal
from selfplay_pipeline.train import groups as groups_module

EPISODES = 4
GROUPS = 6
Key = tuple[int, int, int]
"""Group, episode and seat of a row."""


def write_rows(path: Path, rewards: dict[Key, float], *, shared: bool, partners: Sequence[str] = ()) -> Path:
    """A row for each reward, of random tokens.

    Args:
        partners: who held the other seats, one after another in the episodes of a state.
    """
    rng = np.random.default_rng(0)
    rows = []
    for (group, episode, seat), reward in rewards.items():
        mask = [1] * 3 + [0] * int(rng.integers(1, 9)) + [1] * int(rng.integers(1, 12))
        rows.append(
            training_row(
                group, episode, seat, reward, prompt=[2, 3], response=[2] * len(mask), mask=mask,
                logprobs=[-1.0 * own for own in mask], episodes_per_state=EPISODES, temperature=0.7,
            )
            | ({"partner": partners[episode % len(partners)]} if partners else {})
        )  # fmt: skip
    return write_training_rows(path, rows, shared_reward=shared)


def handed_to_verl(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[dict[str, Any]], list[Key]]:
    """The keys and fields of all groups with a signal, as the replay manager stores them, and whose rows they are."""
    from selfplay_pipeline.train.verl import replay

    keys: list[str] = []
    fields: list[dict[str, Any]] = []

    def put(**given: Any) -> None:
        if "fields" in given:  # else it says which groups are finished
            keys.extend(given["keys"])
            fields.extend(given["fields"])

    monkeypatch.setattr(replay.tq, "kv_batch_put", put)
    monkeypatch.setattr(replay, "list_of_dict_to_tensordict", lambda given: given)
    data = SimpleNamespace(train_files=[str(path)], selfplay=SimpleNamespace(keep_zero_signal=False, imitated=None))
    manager = replay.ReplayManager(SimpleNamespace(data=data))
    groups = manager._dataset.groups
    uids = [f"uid-{position}" for position in range(len(groups))]
    manager.generate_sequences({"uid": uids, "position": list(range(len(groups))), "global_steps": 1})
    of = {uid: group.index for uid, group in zip(uids, groups, strict=True)}
    parts = [key.rsplit("_", 2) for key in keys]
    return keys, fields, [(of[uid], int(episode), int(seat)) for uid, episode, seat in parts]


def handed_to_verl_online(
    path: Path, rules: GameSettings, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[dict[str, Any]]]:
    """The keys and fields that the agent loop's worker stores of the same episodes, of groups with a signal."""
    from verl.trainer.ppo.v1 import agent_loop_tq

    from selfplay_pipeline.train.verl.agent_loop import outputs_of
    from selfplay_pipeline.train.verl.online_sampler import rows_to_train
    from selfplay_pipeline.train.verl.online_worker import SeatWorker

    keys: list[str] = []
    fields: list[dict[str, Any]] = []

    async def put(**given: Any) -> None:
        keys.extend(given["keys"])
        fields.extend(given["fields"])

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", put)
    monkeypatch.setattr(agent_loop_tq, "list_of_dict_to_tensordict", lambda given: given)
    worker = object.__new__(SeatWorker)
    worker.processor = worker.reward_loop_worker_handles = None
    worker.distillation_enabled = False
    episodes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for row in pq.read_table(path).to_pylist():
        episodes[row["extra_info"]["index"], row["extra_info"]["episode"]].append(row)
    for (group, episode), rows in episodes.items():
        rewards = {row["extra_info"]["seat"]: row["reward_model"]["normalized_reward"] for row in rows}
        outcome = SimpleNamespace(
            reward_of=rewards.__getitem__, normalized_reward=np.mean([*rewards.values()]), num_turns=4
        )
        sides = [SimpleNamespace(**row, seat=row["extra_info"]["seat"]) for row in rows]
        record = SimpleNamespace(trajectories=sides, outcome=outcome, group_index=group)
        outputs = outputs_of(record, {}, versions=[[0]] * len(rewards), seconds=0.0)
        about = {"uid": f"uid-{group}", "session_id": episode, "global_steps": 1}
        about |= {"extra_info": {"rules": rules.model_dump_json()}}
        asyncio.run(worker._agent_loop_postprocess(outputs, False, **about))
    kept = rows_to_train(keys, [float(row["rm_scores"].sum()) for row in fields])
    assert [row["uid"] for row in fields] == [key.rsplit("_", 2)[0] for key in keys]
    return [keys[row] for row in kept], [fields[row] for row in kept]


def verls_advantages(keys: Sequence[str], fields: Sequence[dict[str, Any]], episodes: int = EPISODES) -> list[float]:
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
    given = compute_advantage_for_multi_trajectories(data, list(keys), "grpo", num_repeat=episodes).batch["advantages"]
    found = []
    for values, mask in zip(given, data.batch["response_mask"].bool(), strict=True):
        found.append(float(values[mask][0]))
        assert set(values[mask].tolist()) == {found[-1]}
        assert not bool(values[~mask].any())
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


def outcomes(game: Game, player: str) -> Iterator[tuple[int, int, Outcome]]:
    """Plays EPISODES episodes on each of GROUPS states with a scripted player in all seats."""
    for group in range(GROUPS):
        state = game.sample_state(np.random.default_rng(group))
        for episode in range(EPISODES):
            session, rng = game.start(state), np.random.default_rng([group, episode])
            while session.seats:
                seat = session.seats[0]
                session.step(seat, game.players[player].act(game.view(session, seat), rng))
            yield group, episode, session.outcome()


def test_textarenas_rewards_give_the_advantages_of_its_own_scale_to_each_seat_of_a_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("textarena", reason="the extra textarena is not installed")
    from selfplay_pipeline.games import registry

    kind = registry.find("textarena")
    game = kind(kind.settings(name="textarena", env="TicTacToe-v0"))
    rewards, own = {}, {}  # `own` from -1 to 1, as TextArena gives them
    for group, episode, outcome in outcomes(game, "bracketed"):
        for seat, reward in enumerate(outcome.rewards):
            rewards[group, episode, seat] = reward
            own[group, episode, seat] = outcome.decision[seat]
    path = write_rows(tmp_path / "train.parquet", rewards, shared=game.shared_reward)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert len(rows) >= 2 * EPISODES
    found_of = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    for (group, episode, seat), found in found_of.items():
        same = np.array([own[group, number, seat] for number in range(EPISODES)])
        assert found == pytest.approx((own[group, episode, seat] - same.mean()) / same.std(ddof=1), abs=1e-4)
        assert found == pytest.approx(-found_of[group, episode, 1 - seat], abs=1e-4)  # what one wins


def test_with_a_shared_reward_three_roles_are_each_compared_with_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each role is once in every episode, so its mean over rows is the mean over episodes, which verl takes."""
    rng = np.random.default_rng(5)
    values = {(group, episode): float(rng.uniform()) for group in range(GROUPS) for episode in range(EPISODES)}
    rewards = {(*episode, seat): reward for episode, reward in values.items() for seat in range(3)}
    path = write_rows(tmp_path / "train.parquet", rewards, shared=True)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert sorted(rows) == sorted(rewards)
    for (group, episode, seat), found in zip(rows, verls_advantages(keys, fields), strict=True):
        same_role = np.array([rewards[group, other, seat] for other in range(EPISODES)])
        expected = (rewards[group, episode, seat] - same_role.mean()) / (same_role.std(ddof=1) + 1e-6)
        assert found == pytest.approx(expected, abs=1e-5)


def rewards_of_roles(game: Game) -> tuple[dict[Key, float], dict[Key, float]]:
    """The reward of each role in played episodes, and rewards that differ by role: here its share by its seat."""
    shared, own = {}, {}
    for group, episode, outcome in outcomes(game, "random"):
        for seat, reward in enumerate(outcome.rewards):
            shared[group, episode, seat] = reward
            own[group, episode, seat] = reward ** (seat + 1)
    return shared, own


@pytest.mark.parametrize("differ", [False, True], ids=["shared", "by role"])
@pytest.mark.parametrize("name", ["tiny_planning", "tiny_mediation"])
def test_in_planning_and_mediation_a_role_is_compared_with_the_same_role_of_the_other_episodes(
    name: str, differ: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their shared reward a state is one group, in which an episode counts once; this gives the same advantages.

    Rewards that differ by role, which neither game has, are compared in a group for each role.
    """
    game = make_game(load_config(name, {}).game)
    shared, own = rewards_of_roles(game)
    assert game.shared_reward
    roles, rewards = range(len(game.roles)), own if differ else shared
    path = write_rows(tmp_path / "train.parquet", rewards, shared=not differ)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    with_signal = {
        (group, seat)
        for group in range(GROUPS)
        for seat in roles
        if np.ptp([rewards[group, episode, seat] for episode in range(EPISODES)]) > 0
    }
    assert len(with_signal) >= 3 * len(roles)
    assert sorted(rows) == sorted(key for key in rewards if (key[0], key[2]) in with_signal)
    uids = [key.rsplit("_", 2)[0] for key in keys]
    seats_of_uid = {uid: {seat for of, (_, _, seat) in zip(uids, rows, strict=True) if of == uid} for uid in uids}
    assert all(len(seats) == (1 if differ else len(roles)) for seats in seats_of_uid.values())
    found = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    for (group, episode, seat), advantage in found.items():
        same_role = np.array([rewards[group, other, seat] for other in range(EPISODES)])
        expected = (rewards[group, episode, seat] - same_role.mean()) / (same_role.std(ddof=1) + 1e-6)
        assert advantage == pytest.approx(expected, abs=1e-5)
    if not differ:
        keys, fields = handed_to_verl_online(path, game.config, monkeypatch)
        online = sorted(verls_advantages(keys, fields))
        assert online == sorted(found.values())


@pytest.mark.parametrize("shared", [True, False])
def test_episodes_with_different_partners_are_compared_apart(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    rewards = {(group, episode, 0): float(rng.uniform()) for group in range(GROUPS) for episode in range(EPISODES)}
    path = write_rows(tmp_path / "train.parquet", rewards, shared=shared, partners=("one", "other"))
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert sorted(rows) == sorted(rewards)
    for (group, episode, seat), found in zip(rows, verls_advantages(keys, fields), strict=True):
        same = np.array([rewards[group, number, seat] for number in range(EPISODES) if (number - episode) % 2 == 0])
        expected = (rewards[group, episode, seat] - same.mean()) / (same.std(ddof=1) + 1e-6)
        assert found == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("far", [0.0, 1e9, -1e12])
def test_large_rewards_of_ones_own_have_the_advantages_of_their_differences(
    far: float, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32, 1e9 and 1e9 + 1 are equal; the differences here are sixteenths, which float64 keeps at 1e12."""
    rng = np.random.default_rng(3)
    values = {(group, episode): int(rng.integers(0, 17)) / 16 for group in range(GROUPS) for episode in range(EPISODES)}
    values |= {(2, episode): 0.5 for episode in range(EPISODES)}  # no signal
    near = {(*episode, seat): value for episode, value in values.items() for seat in (0, 1)}
    path = write_rows(tmp_path / "train.parquet", near, shared=shared)
    table = pq.read_table(path)
    trained = [far + row["normalized_reward"] for row in table["reward_model"].to_pylist()]
    pq.write_table(table.append_column(TRAINED, pa.array(trained)), path)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    assert {row[0] for row in rows} == {0, 1, 3, 4, 5}
    for (group, episode, _), found in zip(rows, verls_advantages(keys, fields), strict=True):
        same = np.array([values[group, other] for other in range(EPISODES)])
        assert found == pytest.approx((values[group, episode] - same.mean()) / (same.std(ddof=1) + 1e-6), abs=1e-3)


def mixed_batch(path: Path, *, shared: bool) -> tuple[Path, dict[Key, float], dict[Key, tuple[int, int, str]]]:
    """Rows of a batch with several partners, their rewards, and the group of each: state, seat and partner.

    States 0 to 2 are self-play, 3 to 5 have one partner and one seat of the policy each, the episodes of state 6 have
    two partners, and in those of state 7 the policy holds one of two seats.
    """
    rng, rows, rewards, groups = np.random.default_rng(7), [], {}, {}
    for group in range(8):
        for episode in range(EPISODES):
            own = {3: 0, 4: 1, 5: 0, 6: 0}.get(group, episode % 2)
            other = ("past", "speaking")[{6: episode % 2}.get(group, group % 2)]
            partner = "" if group < 3 else f"{1 - own}: {other}"
            values = rng.integers(0, 101, 2) / 100
            for seat in (0, 1) if group < 3 else (own,):
                key = (group, episode, seat)
                rewards[key], groups[key] = float(values[0 if shared else seat]), (group, seat, partner)
                mask = [1, 0, 1]
                rows.append(
                    training_row(
                        *key, rewards[key], prompt=[2, 3], response=[2] * 3, mask=mask,
                        logprobs=[-1.0 * own for own in mask], episodes_per_state=EPISODES, temperature=0.7,
                    ) | {"partner": partner}
                )  # fmt: skip
    return write_training_rows(path, rows, shared_reward=shared), rewards, groups


def largest_difference(
    path: Path, rewards: dict[Key, float], groups: dict[Key, Any], patch: pytest.MonkeyPatch
) -> float:
    """Returns the largest difference between verl's advantages and GRPO by hand, within each of the groups."""
    keys, fields, rows = handed_to_verl(path, patch)
    assert sorted(rows) == sorted(rewards)
    differences = []
    for key, found in zip(rows, verls_advantages(keys, fields), strict=True):
        same = np.array([reward for other, reward in rewards.items() if groups[other] == groups[key]])
        differences.append(abs(found - (rewards[key] - same.mean()) / (same.std(ddof=1) + 1e-6)))
    return max(differences)


@pytest.mark.parametrize("shared", [True, False])
def test_a_batch_with_several_partners_has_the_advantages_of_grpo_by_state_seat_and_partner(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = mixed_batch(tmp_path / "train.parquet", shared=shared)
    assert largest_difference(*batch, monkeypatch) < 1e-5
    mixed = mixed_batch(tmp_path / "mixed.parquet", shared=shared)
    comparison_key = groups_module.comparison_key
    for module in (groups_module, signal):  # a planted mistake: partners are mixed in one group
        monkeypatch.setattr(module, "comparison_key", lambda row: comparison_key(row)._replace(partner=""))
    assert largest_difference(*mixed, monkeypatch) > 0.1


@pytest.mark.parametrize("seats", [2, 3])
@pytest.mark.parametrize("reward", ["selfish", "semi", "cooperative"])
def test_online_gives_the_advantages_of_the_same_episodes_offline_to_the_bit(
    reward: Any, seats: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, rng = reward == "cooperative", np.random.default_rng(3)
    rewards: dict[Key, float] = {}
    for group in range(GROUPS):
        for episode in range(EPISODES):
            values = rng.integers(0, 11, seats) / 10
            # In one group the last seat always got the same, and in another it spoke once.
            values[-1] = 0.5 if group == 3 else values[-1]
            spoke = range(seats - (group == 4 and episode > 0))
            rewards |= {(group, episode, seat): float(values[0 if shared else seat]) for seat in spoke}
    path = write_rows(tmp_path / "train.parquet", rewards, shared=shared)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    offline = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    keys, fields = handed_to_verl_online(path, BargainingConfig(reward=reward), monkeypatch)
    online = {}
    for key, row, found in zip(keys, fields, verls_advantages(keys, fields), strict=True):
        group, episode = key.split("_")[0].removeprefix("uid-"), key.rsplit("_", 2)[1]
        online[int(group), int(episode), row["extra_fields"]["seat"]] = found
    assert online == offline
    last = seats - 1
    assert shared or not {(3, last), (4, last)} & {(group, seat) for group, _, seat in online}


def test_trained_rewards_are_compared_in_place_of_the_games_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = {0: (-3.0, 1.0, 0.0, 6.0), 1: (0.5, 0.5, 0.5, 2.5)}
    rows = [
        training_row(
            0, episode, seat, 1.0, prompt=[2, 3], response=[2] * 3, mask=[1, 0, 1], logprobs=[-1.0, 0.0, -1.0],
            episodes_per_state=EPISODES, temperature=0.7,
        ) | {TRAINED: reward}
        for seat, rewards in trained.items() for episode, reward in enumerate(rewards)
    ]  # fmt: skip
    path = write_training_rows(tmp_path / "train.parquet", rows, shared_reward=False)
    keys, fields, of = handed_to_verl(path, monkeypatch)
    found = {
        (seat, episode): value for (_, episode, seat), value in zip(of, verls_advantages(keys, fields), strict=True)
    }
    # By hand: the means are 1 and 1, the sums of squares 16 + 0 + 1 + 25 = 42 and 3 / 4 + 9 / 4 = 3, over 4 - 1.
    by_hand = {0: [-4 / 14**0.5, 0.0, -1 / 14**0.5, 5 / 14**0.5], 1: [-0.5, -0.5, -0.5, 1.5]}
    assert found == {
        (seat, episode): pytest.approx(value, abs=1e-5)
        for seat, values in by_hand.items()
        for episode, value in enumerate(values)
    }


def test_rows_that_were_written_again_under_the_same_name_are_read_again(tmp_path: Path) -> None:
    from selfplay_pipeline.train.verl.dataset import GroupDataset

    path = tmp_path / "train.parquet"
    config = SimpleNamespace(selfplay=SimpleNamespace(keep_zero_signal=False, imitated=None))

    def rewards(of_first: float) -> list[float]:
        write_rows(path, {(0, 0, 0): of_first, (0, 1, 0): 0.5}, shared=True)
        return [row["reward_model"]["normalized_reward"] for row in GroupDataset(str(path), config).rows(0)]

    assert rewards(0.25) == [0.25, 0.5]
    assert rewards(0.75) == [0.75, 0.5]


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
