"""Puts stored trajectories where verl expects newly generated ones."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch
import transfer_queue as tq
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.model import compute_position_id_with_mask
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from selfplay_pipeline.convert.rows import TRAINED, TURN, WEIGHT
from selfplay_pipeline.train.verl.dataset import GroupDataset

PARTITION = "train"
SEATS = 1000
"""A number above that of the seats of any game."""


class ReplayManager:
    """verl's agent-loop manager for stored trajectories.

    A trajectory's key is {uid}_{session}_{index}: the group's uid, the episode, and the seat with its turn. verl
    compares sessions within a uid and gives all trajectories of a session one advantage. So an episode counts once, for
    any number of seats and turns.
    """

    def __init__(self, config: Any) -> None:
        data = config.data
        self._dataset = GroupDataset(data.train_files, config=data)

    @classmethod
    def create(cls, config: Any, **handles: Any) -> ReplayManager:
        """Returns a manager, as verl's constructor does; there are no servers or reward workers to keep."""
        return cls(config)

    def generate_sequences(self, prompts: Any) -> None:
        """Store the trajectories of a batch of groups and mark the groups as finished."""
        uids, step = list(prompts["uid"]), int(prompts["global_steps"])
        store(self._dataset, dict(zip(uids, map(int, prompts["position"]), strict=True)), step, PARTITION)
        tq.kv_batch_put(keys=uids, partition_id=PARTITION, tags=[{"status": "finished"} for _ in uids])


def store(dataset: GroupDataset, positions: dict[str, int], step: int, partition: str) -> tq.KVBatchMeta:
    """Put stored trajectories where verl expects newly generated ones, and return their keys.

    Args:
        dataset: The dataset that holds the groups.
        positions: Position of each group in the dataset, by its uid.
        step: The step that trains on the trajectories.
        partition: TransferQueue's partition.
    """
    keys, fields, tags = [], [], []
    for uid, position in positions.items():
        centre = fmean(dataset.groups[position].rewards)
        for row in dataset.rows(position):
            keys.append(row_key(uid, row))
            fields.append(trajectory_fields(row, centre) | {"uid": uid, "global_steps": step})
            lengths = len(row["prompt_ids"]), len(row["response_ids"])
            tags.append(
                {
                    "status": "success",
                    "prompt_len": lengths[0],
                    "response_len": lengths[1],
                    "seq_len": sum(lengths),
                    "own_tokens": sum(row["response_mask"]),
                    "global_steps": step,
                    "min_global_steps": 0,
                    "max_global_steps": 0,
                }
            )
    # All at once: making nested tensors for each group took a tenth of a small step.
    tq.kv_batch_put(keys=keys, partition_id=partition, fields=list_of_dict_to_tensordict(fields), tags=tags)
    return tq.KVBatchMeta(partition_id=partition, keys=keys, tags=tags)


def row_key(uid: str, row: dict[str, Any]) -> str:
    """Returns the trajectory key of a row, given its group's uid; the last part of the key must be one number."""
    index = row.get(TURN, 0) * SEATS + row["extra_info"]["seat"]
    return f"{uid}_{row['extra_info']['episode']}_{index}"


def place_in(key: str) -> tuple[str, int, int, int]:
    """Returns the group's uid, the episode, the seat and the seat's row in a trajectory key."""
    uid, episode, index = key.rsplit("_", 2)
    turn, seat = divmod(int(index), SEATS)
    return uid, int(episode), seat, turn


def trajectory_fields(row: dict[str, Any], centre: float = 0.0) -> dict[str, Any]:
    """Returns the fields of a parquet row as verl's V1 trainer stores a trajectory: 1-d tensors, unpadded.

    The reward is on the last response token, which is the last token that the player sampled.

    Args:
        row: The row.
        centre: Mean reward of the row's group, taken off a reward of the user's own. GRPO takes it off too, but in
            float32, in which the differences of large rewards vanish.
    """
    output = AgentLoopOutput(
        prompt_ids=row["prompt_ids"],
        response_ids=row["response_ids"],
        response_mask=row["response_mask"],
        response_logprobs=row["response_logprobs"],
        reward_score=row[TRAINED] - centre if TRAINED in row else row["reward_model"]["normalized_reward"],
        num_turns=row["extra_info"]["num_turns"],
        metrics=AgentLoopMetrics(),
        extra_fields={},
    )
    fields: dict[str, Any] = output.as_dict()
    input_ids = torch.cat([fields["prompts"], fields["responses"]])
    attention_mask = torch.ones_like(input_ids)
    return fields | {
        "input_ids": input_ids,
        "position_ids": compute_position_id_with_mask(attention_mask.unsqueeze(0)).squeeze(0),
        "loss_mask": fields["response_mask"],
        "multi_modal_inputs": {},
        "data_source": "selfplay",
        **({WEIGHT: torch.tensor([row[WEIGHT]])} if WEIGHT in row else {}),
    }
