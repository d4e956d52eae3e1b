"""verl's replay buffer, extended: it computes figures of a step's episodes and drops groups without a signal."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from selfplay_pipeline.metrics.signal import Key, Scored, Signal, comparison_key, groups_of, has_signal


class CountingBuffer(ReplayBuffer):  # type: ignore[misc]
    """verl's replay buffer with figures in a step's metrics, fewer groups, and shorter polling.

    If episodes are lost, verl continues with the rest of their group. This buffer counts lost episodes, and ends the
    run if they are too many. A group with one episode left is not trained on, since verl would use its reward as its
    advantage. As in offline training, groups with equal rewards are left out too, since they would dilute the mean over
    tokens. The trainer makes one update of the rows that are left (`Online._balance_batch`).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, poll_interval=0.1, **kwargs)
        self.selected = set[str]()
        """Uids of the last batch, also of those without a row."""
        self.lost_in_replaced_groups = 0
        """Number of lost episodes of the groups that verl replaced since the last batch."""

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """Returns verl's batch, and figures of its episodes as `selfplay/…`; held-out figures go to `held_out_path`.

        The file is needed because verl drops metrics that are sampled during a validation, and its own means are wrong
        if episodes were lost.

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
        intact = self.selected - self.failure_keys[partition_id]
        lost = whole - int(figures["episodes"]) - silent_episodes(batch.keys, episodes, intact)
        lost, self.lost_in_replaced_groups = lost + self.lost_in_replaced_groups, 0
        if lost > options["max_failures"]:
            raise RuntimeError(f"{lost} of {whole} episodes of step {global_steps} were lost; errors stand above")
        states = {row.state for row in rows_of(batch.keys, scores)}
        figures |= {"episodes_lost": float(lost), "groups_lost": float(batch_size - len(states | intact))}
        if partition_id == "train":
            rows = rows_to_train(batch.keys, scores)
            if not rows:
                raise RuntimeError(f"no group of step {global_steps} has two episodes left; errors stand above")
            keys = batch.keys
            left_out = sorted(set(batch.keys) - {batch.keys[row] for row in rows})
            if left_out:
                tq.kv_clear(keys=left_out, partition_id=partition_id)
            batch = KVBatchMeta(
                partition_id=partition_id,
                keys=[batch.keys[row] for row in rows],
                tags=[batch.tags[row] for row in rows],
            )
            figures["rows"] = float(len(rows))
            if options.get("versions_path"):
                extra = dict(zip(keys, data["extra_fields"], strict=True))
                line = {"step": global_steps, "rows": [version_of(key, extra[key]) for key in batch.keys]}
                with Path(options["versions_path"]).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            return batch, metrics | {f"selfplay/{name}": value for name, value in figures.items()}
        if options.get("held_out_path"):
            with Path(options["held_out_path"]).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": global_steps, "figures": figures}) + "\n")
        return batch, metrics

    def _select_prompt_uids(self, *args: Any, **kwargs: Any) -> Any:
        found = super()._select_prompt_uids(*args, **kwargs)
        self.selected = set(found[0])
        return found


class AsyncBuffer(CountingBuffer, ReplayBufferAsync):
    """The same for verl's asynchronous trainers, which replace a group that lost an episode by another state."""

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        """Remove the groups that are to be replaced, and count their lost episodes.

        Raises:
            RuntimeError: More than `max_failures` episodes were lost since the last batch; verl would go on forever.
        """
        _, _, failed, _ = eviction_reasons
        if failed:
            keys = [key for key in self.partitions[partition_id] if key.split("_")[0] in failed]
            played = {(row.state, row.episode) for row in rows_of(keys, [0.0] * len(keys))}
            self.lost_in_replaced_groups += self.sampler_kwargs["episodes_per_state"] * len(failed) - len(played)
            if self.lost_in_replaced_groups > self.sampler_kwargs["max_failures"]:
                raise RuntimeError(
                    f"{self.lost_in_replaced_groups} episodes were lost before step {global_steps}; errors stand above"
                )
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)


def version_of(key: str, extra: dict[str, Any]) -> dict[str, Any]:
    """Returns the row with this key, and the steps of the oldest and of the newest weights that sampled it."""
    (row,) = rows_of([key], [0.0])
    return {
        "state": extra["state"],
        "episode": row.episode,
        "seat": extra["seat"],
        "oldest": extra["min_global_steps"],
        "newest": extra["max_global_steps"],
    }


def rows_to_train(keys: list[str], scores: list[float]) -> list[int]:
    """Returns the positions of the rows of groups whose episodes have different rewards.

    If there is no such group, these are the rows of groups with two episodes or more: their advantages are 0, so that
    only the KL and entropy terms update the policy in this step.
    """
    rows = rows_of(keys, scores)
    several = {key: episodes for key, episodes in groups_of(rows).items() if len(episodes) > 1}
    differ = {key for key, episodes in several.items() if has_signal(episodes.values())}
    return [number for number, row in enumerate(rows) if comparison_key(row) in (differ or several)]


def uid_of(key: Key[str], *, by_seat: bool) -> str:
    """Returns the uid under which verl compares the rows of a group: the state's uid, plus the seat if seats have their
    own rewards.

    verl's replay buffer reads the text before the first underscore as the state's uid.
    """
    return f"{key.state}_{key.seat}" if by_seat else key.state


def rows_of(keys: list[str], scores: list[float]) -> list[Scored[str]]:
    """Returns the rows of verl's keys {uid}_{session}_{index}; the uid is from `uid_of`."""
    rows = []
    for key, score in zip(keys, scores, strict=True):
        uid, session, _ = key.rsplit("_", 2)
        state, by_seat, seat = uid.partition("_")
        rows.append(Scored(state, int(session), int(seat or 0), score, bool(by_seat)))
    return rows


def silent_episodes(keys: list[str], episodes: int, intact: set[str]) -> int:
    """Returns the number of episodes that have no row although none was lost in their group: the wanted seat took no
    turn.

    Args:
        keys: Keys of all rows of the batch.
        episodes: Number of episodes of each group.
        intact: Uids of the groups that lost no episode.
    """
    played = {(row.state, row.episode) for row in rows_of(keys, [0.0] * len(keys)) if row.state in intact}
    return episodes * len(intact) - len(played)


def episode_figures_of(keys: list[str], scores: list[float], extra_fields: list[dict[str, Any]]) -> dict[str, float]:
    """Returns the means over episodes of the agent loop's figures, which are read from one row per episode.

    Args:
        keys: Keys of the rows, as for `rows_of`.
        scores: Rewards of the rows.
        extra_fields: The agent loop's extra fields of the rows.
    """
    rows = rows_of(keys, scores)
    episodes = {
        (row.state, row.episode): {"reward": extra["reward"], **extra["reward_extra_info"]}
        for row, extra in zip(rows, extra_fields, strict=True)
    }
    sums: dict[str, float] = defaultdict(float)
    for figures in episodes.values():
        for name, value in figures.items():
            sums[name] += value
    signal = Signal.of(group.values() for group in groups_of(rows).values())
    return {
        **{name: total / len(episodes) for name, total in sums.items()},
        "episodes": float(len(episodes)),
        "groups": float(signal.groups),
        "groups_without_signal": float(signal.without),
    }
