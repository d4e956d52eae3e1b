"""verl's replay buffer, which also counts how a step's games went, and leaves out those that teach nothing."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from selfplay_pipeline.metrics.signal import has_signal, without_signal


class CountingBuffer(ReplayBuffer):  # type: ignore[misc]
    """Differs from verl's in the figures that it adds to a step's metrics, in the groups that it hands on, and in how
    often it looks.

    verl goes on with what is left of a group whose plays were lost. Here lost plays are counted, and too many end the
    run; a group of which one play is left is not trained on, since verl would take its reward for its advantage; nor
    is a group whose plays scored alike, as in offline training, so that it does not dilute the mean over tokens.
    verl fills the batch up with rows without tokens.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, poll_interval=0.1, **kwargs)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """verl's batch, and figures of its plays as `selfplay/…`; those of held-out plays go to `held_out_path`.

        verl drops what a validation's sampling reports, and its own means fall apart where plays were lost.

        Raises:
            RuntimeError: more than `max_failures` plays of the batch were lost, or no group has two plays left.
        """
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        options = self.sampler_kwargs
        plays = options["plays_per_state" if partition_id == "train" else "held_out_plays"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["extra_fields", "rm_scores"])
        scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
        figures = play_figures_of(batch.keys, scores, list(data["extra_fields"]))
        whole = plays * batch_size
        lost = whole - int(figures["plays"]) - silent_plays(batch.keys, plays, self.failure_keys[partition_id])
        if lost > options["max_failures"]:
            raise RuntimeError(f"{lost} of {whole} plays of step {global_steps} were lost; errors stand above")
        figures |= {"plays_lost": float(lost), "groups_lost": float(batch_size - figures["groups"])}
        if partition_id == "train":
            rows = rows_to_train(batch.keys, scores)
            if not rows:
                raise RuntimeError(f"no group of step {global_steps} has two plays left; errors stand above")
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
            with Path(options["held_out_path"]).open("a") as file:
                file.write(json.dumps({"step": global_steps, "figures": figures}) + "\n")
        return batch, metrics


def rows_to_train(keys: list[str], scores: list[float]) -> list[int]:
    """Positions of the rows of groups whose plays scored differently.

    Where no group has such plays, those of groups of two plays or more: their advantages are 0, so that the step's
    update is that of the KL and entropy terms alone.
    """
    groups: dict[str, dict[str, float]] = defaultdict(dict)
    for key, score in zip(keys, scores, strict=True):
        uid, session, _ = key.rsplit("_", 2)
        groups[uid][session] = score
    several = {uid for uid, plays in groups.items() if len(plays) > 1}
    differ = {uid for uid in several if has_signal(list(groups[uid].values()))}
    return [row for row, key in enumerate(keys) if key.rsplit("_", 2)[0] in (differ or several)]


def silent_plays(keys: list[str], plays: int, failed: set[str]) -> int:
    """Plays without a row in groups that lost none: the player whose side was wanted never spoke."""
    sessions: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        uid, session, _ = key.rsplit("_", 2)
        sessions[uid].add(session)
    return sum(plays - len(played) for uid, played in sessions.items() if uid not in failed)


def play_figures_of(keys: list[str], scores: list[float], extra_fields: list[dict[str, Any]]) -> dict[str, float]:
    """Means over plays of what the agent loop measured, one row of each play.

    Args:
        keys: {uid}_{session}_{index} of each row.
        scores: rewards of the rows.
        extra_fields: the agent loop's, of the rows.
    """
    plays: dict[str, dict[str, float]] = {}
    groups: dict[str, list[float]] = defaultdict(list)
    for key, score, extra in zip(keys, scores, extra_fields, strict=True):
        uid, session, _ = key.rsplit("_", 2)
        if f"{uid}_{session}" not in plays:
            plays[f"{uid}_{session}"] = {"reward": score, **extra["reward_extra_info"]}
            groups[uid].append(score)
    sums: dict[str, float] = defaultdict(float)
    for figures in plays.values():
        for name, value in figures.items():
            sums[name] += value
    return {
        **{name: total / len(plays) for name, total in sums.items()},
        "plays": float(len(plays)),
        "groups": float(len(groups)),
        "groups_without_signal": float(without_signal(groups.values())),
    }
