"""The agent loop in verl's own worker, TransferQueue and advantage: recorded tokens in place of a server, no training.

Games recorded by the offline code are played again by the loop: a client gives each player the tokens that it sampled
then. What verl stores must be what the offline route gives it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import secrets
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from factories import BOARD, POLICY, Habits, make_episode, make_random_episode, untrained
from library_code import source_of
from test_advantages import grpo, verls_advantages
from training_rows import rows_of, write_training_rows
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from selfplay_pipeline.config.online import OnlineConfig
from selfplay_pipeline.config.schema import GenerateConfig
from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.games.bargaining.game import BargainingGame
from selfplay_pipeline.games.bargaining.rules import BargainingConfig
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.train.online_overrides import CONFIG_NAME, StatesFile, config_folder, online_overrides
from selfplay_pipeline.train.online_states import game_rows
from selfplay_pipeline.train.stopped import TrainingStopped
from selfplay_pipeline.train.verl.dataset import GroupDataset
from selfplay_pipeline.train.verl.guard import Guarded

EPISODES = 8
LIMIT = 4096


@cache
def chat() -> ChatTokenizer:
    return ChatTokenizer.load("data/tiny_model")


def recorded(groups: int, episodes: int = EPISODES, **options: Any) -> list[EpisodeRecord]:
    """Random episodes with the tiny model's tokenizer, agreed or not, with illegal and cut turns."""
    return [
        make_episode(group, episode, chat=chat(), **options) for group in range(groups) for episode in range(episodes)
    ]


@pytest.fixture(scope="module")
def bargainer(tmp_path_factory) -> str:
    """A model that speaks the words of bargaining."""
    return untrained("tiny_bargaining", tmp_path_factory.mktemp("bargainer"))


def with_rewards_of_their_own(bargainer: str, groups: int) -> tuple[Game, list[EpisodeRecord]]:
    """Episodes of a game in which each seat is rewarded for what it gets."""
    game, speaks = BargainingGame(BargainingConfig(reward="selfish")), ChatTokenizer.load(bargainer)
    return game, [
        make_random_episode(game, group, episode, chat=speaks, seed=EPISODES * group + episode)
        for group, episode in np.ndindex(groups, EPISODES)
    ]


def sampled_by(record: EpisodeRecord) -> dict[int, list[tuple[list[int], Completion]]]:
    """By player: the prompts that it was given, and what it sampled then."""
    turns: dict[int, list[tuple[list[int], Completion]]] = defaultdict(list)
    reasons = {p: [t.finish_reason for t in record.turns if t.seat == p] for p in (0, 1)}
    for side in record.trajectories:
        at = 0
        for own, span in groupby(side.response_mask):
            length = len(list(span))
            if own:
                ids = side.response_ids[at : at + length]
                reason = FinishReason(reasons[side.seat][len(turns[side.seat])])
                completion = Completion(ids, side.response_logprobs[at : at + length], reason, 0, 0)
                turns[side.seat].append((side.prompt_ids + side.response_ids[:at], completion))
            at += length
    return turns


class RecordedClient:
    """In place of verl's `LLMServerClient`: answers an episode's requests with the tokens that were sampled in it.

    Like verl's servers it takes keys out of the sampling parameters that it is given.
    """

    def __init__(self, records: list[EpisodeRecord], *, together: int = 0, broken: tuple[str, ...] = ()) -> None:
        self.episodes = {f"g{record.group_index}-{record.episode}": sampled_by(record) for record in records}
        self.broken = broken
        self.requests: dict[str, int] = defaultdict(int)
        self.sampling: list[dict[str, Any]] = []
        self.barrier = asyncio.Barrier(together) if together else None
        self.steps = iter(range(10_000))

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        number = self.requests[request_id]
        self.requests[request_id] += 1
        self.sampling.append(dict(sampling_params))
        for key in ("max_new_tokens", "logprobs", "temperature"):
            sampling_params.pop(key)
        episode, seat = request_id.rsplit("-", 1)
        if episode in self.broken and number == 0:
            raise RuntimeError("on purpose")
        if self.barrier is not None and seat == "0" and number == 0:
            await asyncio.wait_for(self.barrier.wait(), 600)
        prompt, completion = self.episodes[episode][int(seat)][number]
        assert prompt_ids == prompt, "the offline code gave the engine another prompt"
        steps = next(self.steps)
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.logprobs,
            stop_reason=completion.finish_reason.value,
            extra_fields={"global_steps": steps, "min_global_steps": steps, "max_global_steps": steps},
        )


@pytest.fixture(scope="module")
def verl_queue():
    """Ray and verl's TransferQueue in this process."""
    import ray
    from patient_ray import patient
    from ray._private import services

    scratch = tempfile.mkdtemp(prefix="selfplay-test-", dir="/tmp")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    options = dict(
        address="local", num_cpus=8, include_dashboard=False, _temp_dir=scratch, object_store_memory=200_000_000,
        runtime_env={"env_vars": {"TRANSFER_QUEUE_ENABLE": "1"}},
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", patient(services.get_node))
        ray.init(**options)
    import transfer_queue as tq

    config = verl_config()
    config.transfer_queue.enable = True
    tq.init(config.transfer_queue)
    yield tq
    tq.close()
    ray.shutdown()
    shutil.rmtree(scratch, ignore_errors=True)


def composed(*overrides: str) -> Any:
    """verl's configuration with this project's over it."""
    from hydra import compose, initialize_config_dir

    with initialize_config_dir(str(config_folder()), version_base=None):
        return compose(CONFIG_NAME, overrides)


def verl_config(*overrides: str) -> Any:
    """The configuration as `train-online` hands it to verl, for random episodes of the tiny model."""
    return composed(
        "actor_rollout_ref.model.path=data/tiny_model", "actor_rollout_ref.rollout.temperature=1.0",
        f"actor_rollout_ref.rollout.n={EPISODES}", "selfplay.max_new_tokens=200",
        f"data.max_prompt_length={LIMIT // 2}", f"data.max_response_length={LIMIT // 2}",
        "actor_rollout_ref.rollout.agent.agent_loop_config_path=selfplay_pipeline/train/verl/agent_loops.yaml",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *overrides,
    )  # fmt: skip


def check_accepted(config: Any) -> None:
    """verl's own check of a configuration."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    validate_config(config, use_critic=need_critic(config), use_reference_policy=need_reference_policy(config))


def online_verl_config(
    folder: Path, device: Any, rows_per_episode: int = 2, gpus: int = 1, overrides: Sequence[str] = ()
) -> Any:
    """verl's configuration as `train-online` makes it."""
    config = OnlineConfig(
        model="data/tiny_model", output=folder, games=folder, context_length=1024, game=BOARD, gpus_per_node=gpus,
        generate=GenerateConfig(
            episodes_per_state=EPISODES, temperature=0.8, max_new_tokens=64, thinking=True,
            template_args={"effort": "low", "deep": True}, date="2026-11-30",
        ),
        overrides=overrides,
    )  # fmt: skip
    told = online_overrides(config, StatesFile(160, rows_per_episode), device)
    return composed(*(line for line in told if not line.startswith("hydra")))


class Played:
    """A batch of groups that verl's worker has played and stored, as its trainer takes it."""

    def __init__(self, queue: Any, config: Any, batch: Any, metrics: dict[str, float]) -> None:
        self.queue, self.config, self.batch, self.metrics = queue, config, batch, metrics

    def data(self, *fields: str) -> Any:
        keys, partition = self.batch.keys, self.batch.partition_id
        return self.queue.kv_batch_get(keys=keys, partition_id=partition, select_fields=list(fields))

    def column(self, field: str) -> dict[str, Any]:
        """Key → value."""
        values = [v.tolist() if hasattr(v, "tolist") else v for v in self.data(field)[field]]
        return dict(zip(self.batch.keys, values, strict=True))


def play(queue: Any, client: Any, records: list[EpisodeRecord], *, max_failures: int = 0, **options: Any) -> Played:
    """Let one `AgentLoopWorkerTQ` play one row a group, and take the batch as the trainer would."""
    from verl.utils import tensordict_utils as tu

    from selfplay_pipeline.train.verl.online_sampler import CountingBuffer
    from selfplay_pipeline.train.verl.online_worker import SeatWorker

    validate = options.pop("validate", False)
    per_seat = options.pop("per_seat", None)
    game = options.pop("game", MatchingGame(BOARD))
    sampler = f"trainer.v1.sampler.sampler_kwargs.max_failures={max_failures}"
    config = verl_config(sampler, *options.pop("verl", ()))
    worker = SeatWorker(config, client)
    groups = {record.group_index: record for record in records}
    rows = []
    for group, record in groups.items():
        state = game.state_from_json(record.state)
        rows.append(game_rows(game, state, group, 0, "train", per_seat is not None)[per_seat or 0])
    columns = {name: np.array([row[name] for row in rows] + [None], dtype=object)[:-1] for name in rows[0]}
    columns |= {
        "uid": np.array([f"g{group}" for group in groups], dtype=object),
        "index": np.array(list(groups), dtype=object),
        "raw_prompt": np.array([row["prompt"] for row in rows] + [None], dtype=object)[:-1],
    }
    batch = tu.get_tensordict(columns)
    tu.assign_non_tensor_data(batch, "global_steps", 1)
    if validate:
        tu.assign_non_tensor_data(batch, "validate", True)
    partition = "val" if validate else "train"
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 1} for _ in groups]
    queue.kv_batch_put(keys=list(columns["uid"]), partition_id=partition, tags=tags)

    async def work() -> None:
        await worker.generate_sequences(batch)
        while worker.background_tasks:
            await asyncio.wait(set(worker.background_tasks))

    asyncio.run(work())
    sampler = config.trainer.v1.sampler
    buffer = CountingBuffer(
        trainer_mode="sync", trainer_config={}, max_off_policy_threshold=8, max_off_policy_strategy="drop",
        sampler_kwargs=sampler.sampler_kwargs,
    )  # fmt: skip
    try:
        taken, metrics = buffer.sample(global_steps=1, partition_id=partition, batch_size=len(groups))
    except BaseException:
        queue.kv_clear(keys=list(queue.kv_list(partition).get(partition, {})), partition_id=partition)
        raise
    return Played(queue, config, taken, metrics)


@pytest.fixture
def cleared(verl_queue):
    yield verl_queue
    for partition, items in (verl_queue.kv_list() or {}).items():
        if items:
            verl_queue.kv_clear(keys=list(items), partition_id=partition)


def offline_fields(records: list[EpisodeRecord]) -> dict[str, dict[str, Any]]:
    """What the offline route gives verl, by the same keys, with the sides that spoke numbered in order."""
    from selfplay_pipeline.train.verl.replay import trajectory_fields

    fields = {}
    for record in records:
        for index, row in enumerate(rows_of(record, EPISODES)):
            fields[f"g{record.group_index}_{record.episode}_{index}"] = trajectory_fields(row)
    return fields


def advantages(keys: Sequence[str], fields: Sequence[dict[str, Any]]) -> dict[str, float]:
    """verl's, by key."""
    return dict(zip(keys, verls_advantages(keys, fields, EPISODES), strict=True))


def test_the_same_games_online_and_offline_give_verl_the_same(cleared):
    records = recorded(4)
    assert len({record.outcome.status for record in records}) > 1
    online = play(cleared, RecordedClient(records), records)
    offline = offline_fields(records)
    assert sorted(online.batch.keys) == sorted(offline)
    names = ("prompts", "responses", "response_mask", "loss_mask", "rollout_log_probs", "rm_scores", "position_ids")
    for name in (*names, "input_ids", "num_turns"):
        for key, value in online.column(name).items():
            expected = offline[key][name]
            assert value == (expected.tolist() if hasattr(expected, "tolist") else expected), (name, key)
    keys = sorted(offline)
    stored = {name: online.column(name) for name in ("response_mask", "rm_scores")}
    ours = advantages(keys, [{name: stored[name][key] for name in stored} for key in keys])
    theirs = advantages(keys, [offline[key] for key in keys])
    assert ours == theirs
    assert any(ours.values()), "no group carried a signal"


def test_where_rewards_differ_a_seat_is_compared_with_the_same_seat_of_the_other_episodes(cleared, bargainer):
    """verl would give both seats the last one's reward and advantage; offline does the same in `test_advantages.py`."""
    game, records = with_rewards_of_their_own(bargainer, 3)
    online = play(
        cleared, RecordedClient(records), records, game=game, verl=(f"actor_rollout_ref.model.path={bargainer}",)
    )
    assert len(online.batch.keys) == 2 * len(records)
    uids, rewards, masks, extra = map(online.column, ("uid", "rm_scores", "response_mask", "extra_fields"))
    fields = [{"response_mask": np.array(masks[key]), "rm_scores": rewards[key]} for key in online.batch.keys]
    found = advantages(online.batch.keys, fields)
    expected = grpo({(r.group_index, r.episode, seat): r.outcome.reward_of(seat) for r in records for seat in (0, 1)})
    for key in online.batch.keys:
        group, episode = int(key.split("_")[0].removeprefix("g")), int(key.rsplit("_", 2)[1])
        assert found[key] == pytest.approx(expected[group, episode, extra[key]["seat"]], abs=1e-5)
        assert uids[key] == key.rsplit("_", 2)[0], "by which verl groups"
    figures = {name: online.metrics[f"selfplay/{name}"] for name in ("episodes", "groups", "groups_lost")}
    assert figures == {"episodes": len(records), "groups": 6, "groups_lost": 0}
    mean = np.mean([record.outcome.normalized_reward for record in records])
    assert online.metrics["selfplay/reward"] == pytest.approx(mean), "of both seats"


def test_a_validation_has_the_mean_reward_of_seats_with_rewards_of_their_own(cleared, bargainer):
    game, records = with_rewards_of_their_own(bargainer, 1)
    options = (f"actor_rollout_ref.model.path={bargainer}", f"actor_rollout_ref.rollout.val_kwargs.n={EPISODES}")
    online = play(cleared, RecordedClient(records), records, game=game, validate=True, verl=options)
    for key, values in online.column("rm_scores").items():
        reward = records[int(key.rsplit("_", 2)[1])].outcome.normalized_reward
        assert sum(values) == pytest.approx(reward)


def test_both_players_have_the_reward_on_their_last_own_token_and_every_output_has_all_figures(cleared):
    records = recorded(2)
    online = play(cleared, RecordedClient(records), records)
    rewards, masks, extra = (online.column(name) for name in ("rm_scores", "response_mask", "extra_fields"))
    by_episode = {f"g{record.group_index}_{record.episode}": record for record in records}
    for key in online.batch.keys:
        record = by_episode[key.rsplit("_", 1)[0]]
        last = max(position for position, own in enumerate(masks[key]) if own)
        assert last == len(masks[key]) - 1
        assert rewards[key][last] == pytest.approx(record.outcome.normalized_reward)
        assert sum(map(abs, rewards[key][:last])) == 0
        assert extra[key]["reward_extra_info"]["turns"] == record.outcome.num_turns
    for tag in online.batch.tags:
        assert isinstance(tag["min_global_steps"], int) and tag["min_global_steps"] <= tag["max_global_steps"]


def test_each_player_of_an_episode_has_one_request_id_and_every_request_all_sampling_parameters(cleared):
    """verl's servers take parameters out of what they are given."""
    records = recorded(2)
    client = RecordedClient(records)
    play(cleared, client, records)
    assert set(client.requests) == {f"g{r.group_index}-{r.episode}-{t.seat}" for r in records for t in r.turns}
    assert sum(client.requests.values()) == len(client.sampling) == sum(len(record.turns) for record in records)
    for sampling in client.sampling:
        assert (sampling["temperature"], sampling["max_new_tokens"], sampling["logprobs"]) == (1.0, 200, True)
        assert sampling["stop_token_ids"] == [chat().end_of_turn]


def test_sixty_four_games_are_played_at_once_by_one_worker(cleared):
    records = recorded(8)
    client = RecordedClient(records, together=64)
    online = play(cleared, client, records)
    assert online.metrics["selfplay/episodes"] == 64, "the first request of every game waited for those of all others"


def test_an_exception_in_one_game_is_logged_counted_and_loses_no_other(cleared, caplog):
    records = recorded(2)
    with caplog.at_level(logging.ERROR):
        online = play(cleared, RecordedClient(records, broken=("g1-3",)), records, max_failures=1)
    kept = {key.rsplit("_", 1)[0] for key in online.batch.keys}
    assert kept == {f"g{record.group_index}_{record.episode}" for record in records} - {"g1_3"}
    assert (online.metrics["selfplay/episodes"], online.metrics["selfplay/episodes_lost"]) == (2 * EPISODES - 1, 1)
    assert "on purpose" in caplog.text and "was lost" in caplog.text


def of_rows(records: list[EpisodeRecord], keys: set[str]) -> dict[str, float]:
    """What verl gives each of these rows."""
    fields = {key: field for key, field in offline_fields(records).items() if key in keys}
    return advantages(list(fields), list(fields.values()))


@pytest.mark.parametrize("per_seat", [None, 0], ids=["two rows an episode", "one row an episode"])
def test_a_group_left_with_one_episode_is_not_trained_on(cleared, per_seat):
    """verl would take the reward of the episode that is left for its advantage."""
    records = recorded(2)
    left = next(record for record in records if record.group_index == 1 and record.outcome.normalized_reward > 0)
    broken = tuple(f"g1-{episode}" for episode in range(EPISODES) if episode != left.episode)
    client = RecordedClient(records, broken=broken)
    online = play(cleared, client, records, max_failures=EPISODES, per_seat=per_seat)
    assert {key.split("_")[0] for key in online.batch.keys} == {"g0"}
    assert (online.metrics["selfplay/episodes"], online.metrics["selfplay/episodes_lost"]) == (
        EPISODES + 1,
        EPISODES - 1,
    )
    assert online.metrics["selfplay/groups_without_signal"] == 1
    single = {f"g1_{left.episode}_{index}" for index in range(1 if per_seat is not None else 2)}
    handed_on = of_rows(records, set(online.batch.keys) | single)
    reward = pytest.approx(left.outcome.normalized_reward, abs=1e-4)
    assert all(handed_on[key] == reward for key in single), "what verl would do"
    assert of_rows(records, set(online.batch.keys)) == {
        key: value for key, value in handed_on.items() if key not in single
    }
    assert not set(cleared.kv_list("train")["train"]) & single, "nothing of it stays in the queue"


def alike(group: int) -> list[EpisodeRecord]:
    """A group whose episodes all ended without agreement."""
    return [make_episode(group, number, chat=chat(), habits=Habits(spoil=1.0, cut=0.0)) for number in range(EPISODES)]


def balanced(played: Played, states: int, *, processes: int = 1, update: int | None = None, **actor: Any) -> int:
    """Fills up the batch of a step of `states` states as the trainer does before an update; returns verl's mini-batch.

    Args:
        update: `ppo_mini_batch_size`; all rows of the states by default.
    """
    from selfplay_pipeline.train.verl.online_trainer import OnlineTrainer

    class Balances(OnlineTrainer):
        def __init__(self) -> None:
            self.config, self.use_critic, self.global_steps = played.config, False, 1
            self.config.trainer.n_gpus_per_node = processes
            self.config.actor_rollout_ref.actor.update({"ppo_mini_batch_size": update or 2 * states} | actor)
            self.config.selfplay.rows_per_step = 2 * states
            self.tokenizer = SimpleNamespace(eos_token_id=0)
            self.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": list(range(processes))})
            self.replay_buffer = self._build_replay_buffer()

    trainer = Balances()
    played.batch = trainer._balance_batch(played.batch, {})
    size: int = played.config.actor_rollout_ref.actor.ppo_mini_batch_size * played.config.actor_rollout_ref.rollout.n
    assert len(played.batch.keys) == size * -(-len(played.batch.keys) // size), "verl wants a multiple"
    assert trainer._get_required_batch_multiple(processes) == size
    return size


def test_groups_without_signal_are_left_out_of_the_mean_over_tokens_as_offline(cleared, tmp_path):
    from selfplay_pipeline.train.groups import read_data

    records = recorded(2) + alike(2)
    online = play(cleared, RecordedClient(records), records)
    rows = [row for record in records for row in rows_of(record, EPISODES)]
    write_training_rows(tmp_path / "train.parquet", rows)
    offline = [rows[at] for group in read_data([tmp_path / "train.parquet"]).to_train(False) for at in group.rows]
    assert len(online.batch.keys) == len(offline) == online.metrics["selfplay/rows"] < len(rows)
    assert (online.metrics["selfplay/groups"], online.metrics["selfplay/groups_without_signal"]) == (3, 1)
    assert online.metrics["selfplay/episodes"] == 3 * EPISODES, "figures are of all episodes"
    with_signal = set(online.batch.keys)
    assert balanced(online, states=3) == len(online.batch.keys) == 2 * 2 * EPISODES, "one update"
    assert set(online.batch.keys) == with_signal, "without padding"
    tokens = sum(sum(mask) for mask in online.column("loss_mask").values())
    assert tokens == sum(sum(row["response_mask"]) for row in offline)


def test_a_step_without_any_signal_has_rows_whose_advantages_are_zero_and_is_counted(cleared):
    records = alike(0) + alike(1)
    online = play(cleared, RecordedClient(records), records)
    assert online.metrics["selfplay/groups_without_signal"] == online.metrics["selfplay/groups"] == 2
    handed_on = of_rows(records, set(online.batch.keys))
    assert len(handed_on) == online.metrics["selfplay/rows"] > 0
    assert set(handed_on.values()) == {0.0}


@pytest.mark.parametrize(
    ("groups", "broken", "max_failures", "reason"),
    [
        (1, [f"g0-{episode}" for episode in range(1, EPISODES)], EPISODES, "no group of step 1 has two episodes left"),
        (2, ["g0-0", "g1-3"], 1, "2 of 16 episodes of step 1 were lost"),
    ],
    ids=["nothing to compare", "too many lost"],
)
def test_a_step_without_enough_episodes_stops_the_run(cleared, groups, broken, max_failures, reason):
    records = recorded(groups)
    with pytest.raises(RuntimeError, match=reason):
        play(cleared, RecordedClient(records, broken=tuple(broken)), records, max_failures=max_failures)


def test_a_player_who_never_spoke_has_no_output(cleared):
    records = recorded(3, habits=Habits(spoil=1.0, cut=0.0))
    assert any(not side.response_ids for record in records for side in record.trajectories)
    online = play(cleared, RecordedClient(records), records)
    spoke = sum(bool(side.response_ids) for record in records for side in record.trajectories)
    assert len(online.batch.keys) == spoke < 2 * len(records)


def test_one_perspective_a_row_gives_that_players_side_alone(cleared):
    records = [record for record in recorded(2) if record.trajectories[1].response_ids]
    client = RecordedClient(recorded(2))
    online = play(cleared, client, records, per_seat=1)
    assert set(len(key.split("_")) for key in online.batch.keys) == {3}
    assert {extra["seat"] for extra in online.column("extra_fields").values()} == {1}
    prompts = {tuple(record.trajectories[1].prompt_ids) for record in records}
    assert {tuple(ids) for ids in online.column("prompts").values()} == prompts


def test_too_long_for_the_context_ends_with_its_status_and_truncates_nothing(cleared):
    records = recorded(1)
    longest = max(len(s.prompt_ids) + len(s.response_ids) for r in records for s in r.trajectories if s.response_ids)
    first = len(records[0].trajectories[0].prompt_ids)
    limit = first + 200 + 1
    assert longest > limit > first
    sizes = (f"data.max_prompt_length={first - 1}", f"data.max_response_length={limit - first + 1}")
    online = play(cleared, RecordedClient(records), records, verl=sizes)
    assert all(len(ids) <= limit for ids in online.column("input_ids").values())
    assert {tuple(ids) for key, ids in online.column("prompts").items() if key.endswith("_0")} == {
        tuple(records[0].trajectories[0].prompt_ids)
    }, "longer than rollout.prompt_length, and whole"
    ended = [figures["reward_extra_info"]["agreed"] for figures in online.column("extra_fields").values()]
    assert 0.0 in ended


def test_figures_are_those_of_evaluate(cleared):
    from selfplay_pipeline.evaluate.figures_by_state import Seating, Tally
    from selfplay_pipeline.train.online_figures import to_line

    records = recorded(4)
    online = play(cleared, RecordedClient(records), records)
    line = to_line(1, {name: float(value) for name, value in online.metrics.items()})
    tally = Tally(MatchingGame(BOARD), 4, Seating.BOTH).add(records)
    for name, interval in tally.totals().intervals(resamples=1).items():
        assert line[f"selfplay/{name}"] == (
            pytest.approx(interval.value, abs=1e-6) if interval.value else interval.value
        )


def test_validation_sees_only_the_last_output_so_each_has_the_same_figures(cleared):
    records = recorded(2, episodes=1)
    online = play(cleared, RecordedClient(records), records, validate=True)
    by_episode = defaultdict(list)
    for key, extra in online.column("extra_fields").items():
        by_episode[key.rsplit("_", 1)[0]].append(extra["reward_extra_info"])
    assert len(by_episode) == 2
    assert all(figures == several[0] for several in by_episode.values() for figures in several)


def test_figures_of_a_validation_count_every_episode_and_the_lost_ones(cleared, tmp_path):
    """verl names its means after how many episodes of a state are left, and drops what the sampling says."""
    records = recorded(4)
    path = tmp_path / "held_out.jsonl"
    options = (
        f"trainer.v1.sampler.sampler_kwargs.held_out_path={path}",
        f"actor_rollout_ref.rollout.val_kwargs.n={EPISODES}",
    )
    client = RecordedClient(records, broken=("g1-2",))
    play(cleared, client, records, validate=True, max_failures=1, verl=options)
    (line,) = map(json.loads, path.read_text().splitlines())
    left = [r.outcome.normalized_reward for r in records if (r.group_index, r.episode) != (1, 2)]
    figures = line["figures"]
    assert line["step"] == 1
    assert (figures["episodes"], figures["episodes_lost"], figures["groups_lost"]) == (len(left), 1, 0)
    assert figures["reward"] == pytest.approx(sum(left) / len(left))


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_player_who_never_spoke_is_not_counted_as_lost(cleared, whole_group):
    """In some episodes of each group, or in a whole group."""
    records = recorded(3, habits=Habits(spoil=0.6, cut=0.0))
    silent = next(record for record in records if not record.trajectories[1].response_ids)
    if whole_group:
        others = [record for record in records if record.group_index != silent.group_index]
        records = [*others, *(silent.model_copy(update={"episode": number}) for number in range(EPISODES))]
    spoke = [record for record in records if record.trajectories[1].response_ids]
    groups = {record.group_index for record in spoke}
    assert len(spoke) < len(records) and groups == {0, 1, 2} - ({silent.group_index} if whole_group else set())
    online = play(cleared, RecordedClient(records), records, per_seat=1)
    assert {key.split("_")[0] for key in online.batch.keys} <= {f"g{group}" for group in groups}
    figures = [online.metrics[f"selfplay/{name}"] for name in ("episodes", "episodes_lost", "groups_lost")]
    assert figures == [len(spoke), 0, 0]


def test_the_loop_takes_temperature_zero_for_greedy_validation(cleared):
    records = recorded(1, episodes=1, policy=POLICY.model_copy(update={"temperature": 0.0}))
    client = RecordedClient(records)
    play(cleared, client, records, validate=True, verl=("actor_rollout_ref.rollout.val_kwargs.temperature=0",))
    assert {sampling["temperature"] for sampling in client.sampling} == {0.0}


def test_rows_that_verl_adds_for_lost_episodes_are_in_no_figure(cleared):
    from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

    records = recorded(2)
    online = play(cleared, RecordedClient(records, broken=("g1-3",)), records, max_failures=1)
    rewards = [record.outcome.normalized_reward for record in records if (record.group_index, record.episode) != (1, 3)]
    assert online.metrics["selfplay/reward"] == pytest.approx(np.mean(rewards))
    filled = upsample_batch_to_divisible_size(online.batch, 4 * EPISODES, 0)
    assert sum(tag.get("is_padding", False) for tag in filled.tags) == len(filled.keys) - len(online.column("uid")) == 2
    online.batch = filled
    added = [key for key in filled.keys if key.startswith("pad")]
    assert all(sum(online.column("loss_mask")[key]) == 0 for key in added), "nor in the loss"


@pytest.mark.parametrize(
    ("lost", "how", "filled", "update"),
    [
        (0, {}, 16, 16),
        (0, {"processes": 3}, 24, 24),
        (1, {}, 16, 16),
        (2, {"processes": 2}, 16, 16),
        (0, {"update": 1}, 16, 8),
        (0, {"use_dynamic_bsz": False}, 64, 64),
    ],
    ids=["all", "three processes", "one is lost", "two are lost", "two updates are asked for", "passes of rows"],
)
def test_an_update_has_as_few_rows_of_padding_as_the_processes_allow(cleared, lost, how, filled, update):
    """One of four states has a signal; verl would fill up its 16 rows to 64."""
    records = recorded(1) + [record for group in (1, 2, 3) for record in alike(group)]
    broken = tuple(f"g0-{episode}" for episode in range(lost))
    online = play(cleared, RecordedClient(records, broken=broken), records, max_failures=lost)
    rows = len(online.batch.keys)
    assert rows == online.metrics["selfplay/rows"] == 2 * (EPISODES - lost)
    assert balanced(online, states=4, **how) == update
    assert len(online.batch.keys) == filled
    assert sum(bool(tag.get("is_padding")) for tag in online.batch.tags) == filled - rows


@pytest.mark.parametrize(("asked", "updates"), [(None, 1), (4, 2)])
def test_turns_as_rows_are_split_into_the_updates_that_were_asked_for(cleared, asked, updates):
    """The size that a user gives counts the seats of episodes: 8 for four states of two seats."""
    records = recorded(1) + [record for group in (1, 2, 3) for record in alike(group)]
    online = play(cleared, RecordedClient(records), records)
    online.config.selfplay.history = "rendered"
    size = balanced(online, states=4, update=asked)
    assert len(online.batch.keys) == size * updates


class Computes:
    """In place of verl's trainer."""

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        raise AssertionError("verl computes with it")

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        return batch


class Trains(Guarded, Computes):
    """The first step of a training; nothing is saved yet."""

    def __init__(self, folder: Path, temperature: float = 1.0) -> None:
        rollout = SimpleNamespace(rollout=SimpleNamespace(temperature=temperature))
        self.config = SimpleNamespace(actor_rollout_ref=rollout, trainer=SimpleNamespace(default_local_dir=folder))
        self.global_steps = 1

    def row_name(self, key: str) -> str:
        return key


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0])
def test_a_temperature_that_cannot_be_stops_before_anything_is_computed(tmp_path, temperature):
    with pytest.raises(TrainingStopped, match=f"step 1: the sampling temperature is {temperature}"):
        Trains(tmp_path, temperature)._compute_old_log_prob(None, {})


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_log_prob_that_is_not_a_number_stops_the_step_and_its_row_is_named(cleared, tmp_path, number):
    records = recorded(2)
    online = play(cleared, RecordedClient(records), records)
    assert Trains(tmp_path)._compute_advantage(online.batch, {}) is online.batch
    values = [row.clone() for row in online.data("rollout_log_probs")["rollout_log_probs"].unbind()]
    values[5][-1] = values[7][0] = number
    fields = list_of_dict_to_tensordict([{"rollout_log_probs": row} for row in values])
    cleared.kv_batch_put(keys=online.batch.keys, partition_id=online.batch.partition_id, fields=fields)
    rows, key = len(values), online.batch.keys[5]
    says = f"step 1: the engine's log-probs of {key}: {number} is not finite (2 of {rows} rows of the step are like "
    with pytest.raises(TrainingStopped, match=re.escape(f"{says}this); nothing was saved")):
        Trains(tmp_path)._compute_advantage(online.batch, {})


def test_a_row_of_a_file_is_named_by_its_number_and_its_episode(tmp_path):
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    records = recorded(4, habits=Habits(spoil=0.0, cut=0.0))
    for file, some in zip(files, (records[: 3 * EPISODES], records[3 * EPISODES :]), strict=True):
        write_training_rows(file, [row for record in some for row in rows_of(record, EPISODES)])
    chosen = SimpleNamespace(selfplay=SimpleNamespace(keep_zero_signal=True, imitated=None))
    dataset = GroupDataset([str(file) for file in files], chosen)
    for group, episode, place in ((1, 2, f"{files[0]}, row {2 * EPISODES + 5}"), (3, 0, f"{files[1]}, row 1")):
        named = records[group * EPISODES + episode].episode_id
        assert dataset.row_name(group, episode, 1, 0) == f"{place} ({named}, seat 1)"


class TestSizes:
    """An episode has two rows, which verl's mini-batch does not know of."""

    @pytest.mark.parametrize("device", ["cpu", "cuda"])
    @pytest.mark.parametrize("rows_per_episode", [1, 2])
    def test_all_rows_of_a_step_are_one_update(self, device, rows_per_episode, tmp_path):
        config = online_verl_config(tmp_path, device, rows_per_episode)
        n = config.actor_rollout_ref.rollout.n
        assert (
            config.data.train_batch_size * n * rows_per_episode
            == config.actor_rollout_ref.actor.ppo_mini_batch_size * n
        )

    @pytest.mark.parametrize(("cores", "workers"), [(1, 1), (6, 3), (96, 8)])
    def test_on_gpus_half_of_the_cores_play_and_on_a_cpu_verls_own_process(self, cores, workers, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        found = [online_verl_config(tmp_path, device) for device in ("cuda", "cpu")]
        assert [config.actor_rollout_ref.rollout.agent.num_workers for config in found] == [workers, 1]

    @pytest.mark.parametrize(("device", "name"), [("cpu", "sglang_cpu"), ("cuda", "sglang")])
    def test_one_configuration_serves_both_devices(self, device, name, tmp_path):
        config = online_verl_config(tmp_path, device)
        assert config.actor_rollout_ref.rollout.name == name
        assert config.trainer.v1.trainer_mode == "online"
        assert config.actor_rollout_ref.rollout.agent.default_agent_loop == "selfplay"
        assert (config.selfplay.max_new_tokens, config.selfplay.thinking) == (64, True)
        assert json.loads(config.selfplay.template_args) == {"effort": "low", "deep": True}
        assert (config.selfplay.date, config.selfplay.history) == ("2026-11-30", "rendered")
        assert config.data.max_prompt_length + config.data.max_response_length == 1024
        assert config.trainer.total_epochs == 3, "50 steps of 8 states on 160"

    @pytest.mark.parametrize("gpus", [1, 8])
    def test_verl_accepts_what_train_online_gives_it_for_gpus(self, gpus, tmp_path):
        check_accepted(config := online_verl_config(tmp_path, "cuda", gpus=gpus))
        assert config.actor_rollout_ref.actor.fsdp_config.optimizer_offload == (gpus == 1)
        assert config.actor_rollout_ref.rollout.dtype == "bfloat16"

    def test_verls_own_server_gets_sglangs_arguments_and_users_can_add_some(self, tmp_path):
        """SGLang's own list of arguments and values is read in its source, since a CPU's SGLang has other imports."""
        server = "actor_rollout_ref.rollout.engine_kwargs.sglang"
        config = online_verl_config(tmp_path, "cuda", overrides=[f"+{server}.attention_backend=triton"])
        given = config.actor_rollout_ref.rollout.engine_kwargs.sglang
        assert given == {"grammar_backend": "none", "attention_backend": "triton"}
        assert '"none"' in (source_of("sglang.srt.server_args:GRAMMAR_BACKEND_CHOICES") or "")
        for name in given:
            assert source_of(f"sglang.srt.server_args:ServerArgs.{name}"), name
        changed = online_verl_config(tmp_path, "cuda", overrides=[f"{server}.grammar_backend=xgrammar"])
        assert changed.actor_rollout_ref.rollout.engine_kwargs.sglang == {"grammar_backend": "xgrammar"}

    def test_verl_accepts_the_doubled_size_only_with_sizes_in_tokens(self):
        check_accepted(verl_config("trainer.n_gpus_per_node=1", "trainer.device=cpu"))
        in_rows = verl_config(
            "trainer.n_gpus_per_node=1", "actor_rollout_ref.actor.use_dynamic_bsz=false",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        )  # fmt: skip
        with pytest.raises(ValueError, match="train_batch_size"):
            check_accepted(in_rows)


@pytest.mark.parametrize(
    ("reason", "length", "expected"),
    [
        ("stop", 3, FinishReason.STOP), ("completed", 3, FinishReason.STOP), ("length", 5, FinishReason.LENGTH),
        ("aborted", 3, FinishReason.ABORT), ("abort", 3, FinishReason.ABORT), (None, 5, FinishReason.LENGTH),
        (None, 3, FinishReason.STOP),
    ],
)  # fmt: skip
def test_stop_reasons_of_verls_servers(reason, length, expected):
    from selfplay_pipeline.engines.types import SamplingParams
    from selfplay_pipeline.train.verl.rollout_engine import VerlEngine

    async def answer(**request: Any) -> Any:
        extra = {"min_global_steps": 2, "max_global_steps": 3}
        return SimpleNamespace(
            token_ids=[7] * length, log_probs=[-0.1] * length, stop_reason=reason, extra_fields=extra
        )

    engine = VerlEngine(SimpleNamespace(generate=answer), {})
    completion = asyncio.run(engine.generate([1], SamplingParams(1.0, 5, (9,)), session="s"))
    assert completion.finish_reason is expected
    assert engine.versions == [2, 3]
