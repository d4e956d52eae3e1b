"""verl's replay buffer, with figures of a step's episodes and without groups that have no signal."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from selfplay_pipeline.metrics.signal import Signal, has_signal


class CountingBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's replay buffer with figures in a step's metrics, fewer groups, and shorter polling.

    verl continues with the rest of a group whose episodes were lost. Here lost episodes are counted, and too many end
    the run. A group with one episode left is not trained on, since verl would take its reward for its advantage. A
    group whose episodes have equal rewards is not trained on either, as in offline training, so that it does not dilute
    the mean over tokens. verl fills the batch up with rows without tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, poll_interval=0.1, **kwargs)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Returns verl's batch, and figures of its episodes as `selfplay/…`; held-out figures go to `held_out_path`.

        verl drops the metrics of a validation's sampling, and its own means are wrong if episodes were lost.

        Raises:
            RuntimeError: More than `max_failures` episodes of the batch were lost, or no group has two episodes left.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        options = self.sampler_kwargs
        episodes = options["episodes_per_state" if partition_id == "train" else "held_out_episodes"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["extra_fields", "rm_scores"])
        scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
        figures = episode_figures_of(batch.keys, scores, list(data["extra_fields"]))
        whole = episodes * batch_size
        lost = whole - int(figures["episodes"]) - silent_episodes(batch.keys, episodes, self.failure_keys[partition_id])
        if lost > options["max_failures"]:
            raise RuntimeError(f"{lost} of {whole} episodes of step {global_steps} were lost; errors stand above")
        states = {key.split("_")[0] for key in batch.keys}
        figures |= {"episodes_lost": float(lost), "groups_lost": float(batch_size - len(states))}
        if partition_id == "train":
            rows = rows_to_train(batch.keys, scores)
            if not rows:
                raise RuntimeError(f"no group of step {global_steps} has two episodes left; errors stand above")
            left_out = sorted(set(batch.keys) - {batch.keys[row] for row in rows})
            if left_out:
                tq.kv_clear(keys=left_out, partition_id=partition_id)
            batch = KVBatchMeta(
                partition_id=partition_id,
                keys=[batch.keys[row] for row in rows],
                tags=[batch.tags[row] for row in rows],
            )
            figures["rows"] = float(len(rows))
            return batch, metrics | {f"selfplay/{name}": value for name, value in figures.items()}
        if options.get("held_out_path"):
            with Path(options["held_out_path"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": global_steps, "figures": figures}) + "\n")
        return batch, metrics


def rows_to_train(keys: list[str], scores: list[float]) -> list[int]:
    """Returns the positions of the rows of groups whose episodes have different rewards.

    If there is no such group, these are the rows of groups with two episodes or more: their advantages are 0, so that
    only the KL and entropy terms update the policy in this step.
    """
    groups = groups_of(keys, scores)
    several = {uid for uid, episodes in groups.items() if len(episodes) > 1}
    differ = {uid for uid in several if has_signal(list(groups[uid].values()))}
    return [row for row, key in enumerate(keys) if key.rsplit("_", 2)[0] in (differ or several)]


def groups_of(keys: list[str], scores: list[float]) -> dict[str, dict[str, float]]:
    """Returns the rewards that verl compares: by group, then session.

    A group is the episodes of a state, or of one seat in them if seats have rewards of their own.

    Args:
        keys: Key {uid}_{session}_{index} of each row; the uid is the state's alone or with a seat: {uid}_{seat}.
        scores: Rewards of the rows.
    """
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for key, score in zip(keys, scores, strict=True):
        group, session, _ = key.rsplit("_", 2)
        groups[group][session] = score
    return groups


def episode_of(key: str) -> tuple[str, str]:
    """Returns the uid of a row's state and the session of its episode."""
    return key.split("_")[0], key.rsplit("_", 2)[1]


def silent_episodes(keys: list[str], episodes: int, failed: set[str]) -> int:
    """Returns the number of episodes without a row in groups that lost none: the wanted seat never spoke."""
    sessions: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        uid, session = episode_of(key)
        sessions[uid].add(session)
    return sum(episodes - len(played) for uid, played in sessions.items() if uid not in failed)


def episode_figures_of(keys: list[str], scores: list[float], extra_fields: list[dict[str, Any]]) -> dict[str, float]:
    """Returns means over episodes of the agent loop's figures, with one row of each episode.

    Args:
        keys: Keys of the rows, as for `groups_of`.
        scores: Rewards of the rows.
        extra_fields: The agent loop's extra fields of the rows.
    """
    episodes = {
        episode_of(key): {"reward": extra["reward"], **extra["reward_extra_info"]}
        for key, extra in zip(keys, extra_fields, strict=True)
    }
    groups = [list(group.values()) for group in groups_of(keys, scores).values()]
    sums: dict[str, float] = defaultdict(float)
    for figures in episodes.values():
        for name, value in figures.items():
            sums[name] += value
    signal = Signal.of(groups)
    return {
        **{name: total / len(episodes) for name, total in sums.items()},
        "episodes": float(len(episodes)),
        "groups": float(signal.groups),
        "groups_without_signal": float(signal.without),
    }
