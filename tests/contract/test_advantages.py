"""The advantages that verl's own GRPO gives to the rows of games whose seats have rewards of their own, or share one.

Rows go the way of a training, offline or online, until they are handed to verl under its own keys. Nothing is trained.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from training_rows import training_row, turns_of, write_training_rows

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


def write_rows(
    path: Path, rewards: dict[Key, float], *, shared: bool, partners: Sequence[str] = (), turns: bool = False
) -> Path:
    """A row for each reward, of random tokens.

    Args:
        partners: who held the other seats, one after another in the episodes of a state.
        turns: whether each of a row's turns, one or two, is a row of its own.
    """
    rng = np.random.default_rng(0)
    rows = []
    for (group, episode, seat), reward in rewards.items():
        mask = [1] * 3 + ([0] * int(rng.integers(1, 9)) + [1] * int(rng.integers(1, 12))) * int(rng.integers(2))
        rows.append(
            training_row(
                group, episode, seat, reward, prompt=[2, 3], response=[2] * len(mask), mask=mask,
                logprobs=[-1.0 * own for own in mask], episodes_per_state=EPISODES, temperature=0.7,
            )
            | ({"partner": partners[episode % len(partners)]} if partners else {})
        )  # fmt: skip
    return write_training_rows(path, turns_of(rows) if turns else rows, shared_reward=shared)


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
    parts = [replay.place_in(key) for key in keys]
    return keys, fields, [(of[uid], episode, seat) for uid, episode, seat, _ in parts]


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


def grpo(
    rewards: Mapping[Key, float], group_of: Callable[[Key], Hashable] = lambda key: (key[0], key[2])
) -> dict[Key, float]:
    """The advantages by hand: each reward is compared with those of its group, by default of its state and seat."""
    groups = defaultdict(list)
    for key, reward in rewards.items():
        groups[group_of(key)].append(reward)
    means = {group: (np.mean(found), np.std(found, ddof=1) + 1e-6) for group, found in groups.items()}
    return {key: float((reward - means[group_of(key)][0]) / means[group_of(key)][1]) for key, reward in rewards.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.parquet"


@pytest.fixture
def verls(path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], dict[Key, float]]:
    """verl's advantages of the rows of a file, by row."""

    def found(path: Path) -> dict[Key, float]:
        keys, fields, rows = handed_to_verl(path, monkeypatch)
        return dict(zip(rows, verls_advantages(keys, fields), strict=True))

    return found


def drawn(seed: int, seats: int, *, shared: bool = False) -> dict[Key, float]:
    """Random rewards of all rows; a shared one is that of all seats of an episode."""
    rng = np.random.default_rng(seed)
    of_episode = {place: rng.uniform(size=seats) for place in np.ndindex(GROUPS, EPISODES)}
    return {
        (*place, seat): float(values[0 if shared else seat])
        for place, values in of_episode.items()
        for seat in range(seats)
    }


SILENT, NO_SIGNAL = (2, 1, 1), (3, 0)
OWN = {key: 0.5 if (key[0], key[2]) == NO_SIGNAL else reward for key, reward in drawn(1, 2).items() if key != SILENT}
"""A seat that never spoke in one episode, and one that always got the same in one state, unlike the other."""


@pytest.mark.parametrize(
    ("rewards", "shared", "partners"),
    [
        (OWN, False, 1),
        (drawn(5, 3, shared=True), True, 1),
        (drawn(4, 1), True, 2),
        (drawn(4, 1), False, 2),
    ],
    ids=["own rewards", "three roles share a reward", "partners and a shared reward", "partners and own rewards"],
)
def test_a_reward_is_compared_with_the_same_seat_and_partner_of_the_other_episodes(
    rewards, shared, partners, path, verls
):
    """A role is once in every episode, so that its mean over rows is the mean over episodes, which verl takes."""
    write_rows(path, rewards, shared=shared, partners=("one", "other")[:partners])
    found, expected = verls(path), grpo(rewards, lambda key: (key[0], key[2], key[1] % partners))
    assert set(found) == {key for key in rewards if rewards is not OWN or (key[0], key[2]) != NO_SIGNAL}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-5)


@pytest.mark.parametrize(("rewards", "shared"), [(OWN, False), (drawn(5, 3, shared=True), True)])
def test_turns_as_rows_have_the_advantage_of_their_seat_however_many_they_are(
    rewards, shared, path, tmp_path, monkeypatch
):
    keys, fields, places = handed_to_verl(write_rows(path, rewards, shared=shared), monkeypatch)
    as_one = dict(zip(places, verls_advantages(keys, fields), strict=True))
    write_rows(tmp_path / "turns.parquet", rewards, shared=shared, turns=True)
    keys, fields, places = handed_to_verl(tmp_path / "turns.parquet", monkeypatch)
    assert len(keys) > len(as_one) == len(set(places))
    for place, advantage in zip(places, verls_advantages(keys, fields), strict=True):
        assert advantage == as_one[place]
    rules = BargainingConfig(reward="cooperative" if shared else "selfish")
    keys, fields = handed_to_verl_online(tmp_path / "turns.parquet", rules, monkeypatch)
    assert sorted(verls_advantages(keys, fields)) == pytest.approx(sorted(as_one[place] for place in places), abs=1e-6)


def outcomes(game: Game, player: str) -> Iterator[tuple[int, int, Outcome]]:
    """Plays EPISODES episodes on each of GROUPS states with a scripted player in all seats."""
    for group in range(GROUPS):
        state = game.sample_state(np.random.default_rng(group))
        for episode in range(EPISODES):
            session, rng = game.start(state), np.random.default_rng([group, episode])
            while session.seats:  # which may take illegal turns
                seat = session.seats[0]
                session.step(seat, game.players[player].act(game.view(session, seat), rng))
            yield group, episode, session.outcome()


def test_textarenas_rewards_give_the_advantages_of_its_own_scale_to_each_seat_of_a_state(path, verls):
    pytest.importorskip("textarena", reason="the extra textarena is not installed")
    from selfplay_pipeline.games import registry

    kind = registry.find("textarena")
    game = kind(kind.settings(name="textarena", env="TicTacToe-v0"))
    rewards, own = {}, {}  # `own` from -1 to 1, as TextArena gives them
    for group, episode, outcome in outcomes(game, "bracketed"):
        for seat, reward in enumerate(outcome.rewards):
            rewards[group, episode, seat] = reward
            own[group, episode, seat] = outcome.decision[seat]
    found, expected = verls(write_rows(path, rewards, shared=game.shared_reward)), grpo(own)
    assert len(found) >= 2 * EPISODES
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-4)
    assert found == pytest.approx({key: -found[*key[:2], 1 - key[2]] for key in found}, abs=1e-4), "what one wins"


@pytest.mark.parametrize("differ", [False, True], ids=["shared", "by role"])
@pytest.mark.parametrize("name", ["tiny_planning", "tiny_mediation"])
def test_in_planning_and_mediation_a_role_is_compared_with_the_same_role_of_the_other_episodes(
    name, differ, path, monkeypatch
):
    """With their shared reward a state is one group, in which an episode counts once; this gives the same advantages.

    Rewards that differ by role, which neither game has, are compared in a group for each role.
    """
    game = make_game(load_config(name, {}).game)
    assert game.shared_reward
    rewards = {  # that differ by role: the share by its seat
        (group, episode, seat): reward ** (seat + 1 if differ else 1)
        for group, episode, outcome in outcomes(game, "random")
        for seat, reward in enumerate(outcome.rewards)
    }
    write_rows(path, rewards, shared=not differ)
    keys, fields, rows = handed_to_verl(path, monkeypatch)
    expected = {key: advantage for key, advantage in grpo(rewards).items() if any_signal(rewards, key)}
    roles = len(game.roles)
    assert len({(group, seat) for group, _, seat in expected}) >= 3 * roles and sorted(rows) == sorted(expected)
    uids = [key.rsplit("_", 2)[0] for key in keys]
    seats_of_uid = {uid: {seat for of, (_, _, seat) in zip(uids, rows, strict=True) if of == uid} for uid in uids}
    assert all(len(seats) == (1 if differ else roles) for seats in seats_of_uid.values())
    found = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    assert found == pytest.approx(expected, abs=1e-5)
    if not differ:
        assert sorted(verls_advantages(*handed_to_verl_online(path, game.config, monkeypatch))) == sorted(
            found.values()
        )


def any_signal(rewards: Mapping[Key, float], key: Key) -> bool:
    return np.ptp([rewards[key[0], episode, key[2]] for episode in range(EPISODES)]) > 0


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("far", [0.0, 1e9, -1e12])
def test_large_rewards_of_ones_own_have_the_advantages_of_their_differences(far, shared, path, verls):
    """In float32, 1e9 and 1e9 + 1 are equal; the differences here are sixteenths, which float64 keeps at 1e12."""
    near = {key: round(16 * value) / 16 for key, value in drawn(3, 2, shared=True).items()}
    near |= {key: 0.5 for key in near if key[0] == 2}  # no signal
    table = pq.read_table(write_rows(path, near, shared=shared))
    trained = [far + row["normalized_reward"] for row in table["reward_model"].to_pylist()]
    pq.write_table(table.append_column(TRAINED, pa.array(trained)), path)
    found, expected = verls(path), grpo(near)
    assert {key[0] for key in found} == {0, 1, 3, 4, 5}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-3)


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


@pytest.mark.parametrize("shared", [True, False])
def test_a_batch_with_several_partners_has_the_advantages_of_grpo_by_state_seat_and_partner(
    shared, path, verls, monkeypatch
):
    _, rewards, groups = mixed_batch(path, shared=shared)
    expected = grpo(rewards, groups.__getitem__)
    assert verls(path) == pytest.approx(expected, abs=1e-5)
    comparison_key = groups_module.comparison_key
    for module in (groups_module, signal):  # a planted mistake: partners are mixed in one group
        monkeypatch.setattr(module, "comparison_key", lambda row: comparison_key(row)._replace(partner=""))
    mixed = verls(mixed_batch(path.with_name("mixed.parquet"), shared=shared)[0])
    assert max(abs(mixed[key] - expected[key]) for key in expected) > 0.1


@pytest.mark.parametrize("seats", [2, 3])
@pytest.mark.parametrize("reward", ["selfish", "semi", "cooperative"])
def test_online_gives_the_advantages_of_the_same_episodes_offline_to_the_bit(reward, seats, path, verls, monkeypatch):
    """In one group the last seat always got the same, and in another it spoke once."""
    shared, last = reward == "cooperative", seats - 1
    rewards = {
        key: 0.5 if key[::2] == (3, last) and not shared else value
        for key, value in drawn(3, seats, shared=shared).items()
        if key[0] != 4 or key[2] != last or key[1] == 0
    }
    offline = verls(write_rows(path, rewards, shared=shared))
    keys, fields = handed_to_verl_online(path, BargainingConfig(reward=reward), monkeypatch)
    online = {}
    for key, row, found in zip(keys, fields, verls_advantages(keys, fields), strict=True):
        group, episode = key.split("_")[0].removeprefix("uid-"), key.rsplit("_", 2)[1]
        online[int(group), int(episode), row["extra_fields"]["seat"]] = found
    assert online == offline
    assert shared or not {(3, last), (4, last)} & {(group, seat) for group, _, seat in online}


def test_trained_rewards_are_compared_in_place_of_the_games_own(path, verls):
    trained = {0: (-3.0, 1.0, 0.0, 6.0), 1: (0.5, 0.5, 0.5, 2.5)}
    rows = [
        training_row(
            0, episode, seat, 1.0, prompt=[2, 3], response=[2] * 3, mask=[1, 0, 1], logprobs=[-1.0, 0.0, -1.0],
            episodes_per_state=EPISODES, temperature=0.7,
        ) | {TRAINED: reward}
        for seat, rewards in trained.items() for episode, reward in enumerate(rewards)
    ]  # fmt: skip
    found = verls(write_training_rows(path, rows, shared_reward=False))
    # By hand: the means are 1 and 1, the sums of squares 16 + 0 + 1 + 25 = 42 and 3 / 4 + 9 / 4 = 3, over 4 - 1.
    by_hand = {0: [-4 / 14**0.5, 0.0, -1 / 14**0.5, 5 / 14**0.5], 1: [-0.5, -0.5, -0.5, 1.5]}
    expected = {(0, episode, seat): value for seat, values in by_hand.items() for episode, value in enumerate(values)}
    assert found == pytest.approx(expected, abs=1e-5)


def test_rows_that_were_written_again_under_the_same_name_are_read_again(tmp_path: Path) -> None:
    from selfplay_pipeline.train.verl.dataset import GroupDataset

    path = tmp_path / "train.parquet"
    config = SimpleNamespace(selfplay=SimpleNamespace(keep_zero_signal=False, imitated=None))

    def rewards(of_first: float) -> list[float]:
        write_rows(path, {(0, 0, 0): of_first, (0, 1, 0): 0.5}, shared=True)
        return [row["reward_model"]["normalized_reward"] for row in GroupDataset(str(path), config).rows(0)]

    assert rewards(0.25) == [0.25, 0.5]
    assert rewards(0.75) == [0.75, 0.5]


def test_a_shared_reward_gives_the_advantages_of_one_group_a_state_to_the_bit(path, monkeypatch):
    """Revision 671181a, which knew shared rewards only, had one uid for all rows of a state, in the file's order."""
    rewards = {key: reward for key, reward in drawn(2, 2, shared=True).items() if key != SILENT}
    keys, fields, rows = handed_to_verl(write_rows(path, rewards, shared=True), monkeypatch)
    assert rows == list(rewards)
    then = [f"state-{group}_{episode}_{seat}" for group, episode, seat in rewards]
    found = dict(zip(rows, verls_advantages(keys, fields), strict=True))
    assert [*found.values()] == verls_advantages(then, fields)
    assert all(value == found[*key[:2], 0] for key, value in found.items())
