"""Conversion of one episode to rows for verl: one per trained seat that took a turn, or one per turn of such a seat."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa

from selfplay_pipeline.games.registry import game_of
from selfplay_pipeline.generate.records import SCHEMA_VERSION, EpisodeRecord

AGENT_NAME = "selfplay"
METADATA_KEY = b"selfplay"

MESSAGES = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))
SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": MESSAGES,
        "messages": MESSAGES,
        "agent_name": pa.string(),
        "reward_model": pa.struct(
            {
                "style": pa.string(),
                "ground_truth": pa.string(),
                "normalized_reward": pa.float64(),
                "game_state": pa.string(),
            }
        ),
        "extra_info": pa.struct(
            {
                "index": pa.int64(),
                "episode_id": pa.string(),
                "seat": pa.int64(),
                "episode": pa.int64(),
                "episodes_per_state": pa.int64(),
                "group_rows": pa.int64(),
                "status": pa.string(),
                "num_turns": pa.int64(),
            }
        ),
        "prompt_ids": pa.list_(pa.int32()),
        "response_ids": pa.list_(pa.int32()),
        "response_mask": pa.list_(pa.int8()),
        "response_logprobs": pa.list_(pa.float32()),
        "sampling_temperature": pa.float64(),
    }
)
"""Columns of train.parquet and val.parquet. `extra_info.index` is the group index.

`extra_info.group_rows` is the number of rows of the group when the file was written, so that a reader detects missing
rows. Engine failures and seats without a turn have no rows and are not counted.
"""

WEIGHT = "weight"
"""Extra column of imitation rows: factor of the loss of each imitated token. Other rows have weight 1."""
PARTNER = "partner"
"""Extra column if a state was played with different partners: names of the row's partners, part of the group's key."""
TURN = "turn"
"""Extra column of rows with rendered history: number of the turn among the seat's rows of the episode, from 0."""
TRAINED = "trained_reward"
"""Extra column of rows with another reward than the game's own, which stays in `reward_model`."""
FURTHER = {
    WEIGHT: pa.float32(), TRAINED: pa.float64(), PARTNER: pa.string(), TURN: pa.int64()
}  # fmt: skip
"""Types of the extra columns, which only some files have."""


OF_EPISODES = (TRAINED, PARTNER, TURN)
"""Extra columns of rows whose episodes are compared."""


def schema_with(*further: str) -> pa.Schema:
    """Returns the schema of rows with the named extra columns."""
    return pa.schema([*SCHEMA, *(pa.field(name, FURTHER[name]) for name in further)])


def described(
    schema: pa.Schema, *, game: str, shared: bool, temperature: float, episodes_per_state: int, **further: Any
) -> pa.Schema:
    """Returns a schema with metadata that describes all rows.

    Args:
        schema: The schema.
        game: Name of the game.
        shared: Whether all seats of an episode have the same reward.
        temperature: Sampling temperature.
        episodes_per_state: Group size.
        further: Other metadata, such as the checkpoint that sampled the rows and its content hash.
    """
    facts = {
        "schema_version": SCHEMA_VERSION,
        "game": game,
        "shared_reward": shared,
        "temperature": temperature,
        "episodes_per_state": episodes_per_state,
        **further,
    }
    return schema.with_metadata({METADATA_KEY: json.dumps(facts).encode()})


def episode_to_rows(record: EpisodeRecord) -> list[dict[str, Any]]:
    """Returns the rows of one episode; a seat without a sampled token gives no row.

    Rows of all files have the key `turn`, which only files with rendered history store.
    `episodes_per_state` and `group_rows` are 0, since they are known only when all episodes have been read.
    """
    state = json.dumps(record.state, separators=(",", ":"))
    rows, turns = [], Counter[int]()
    for side in record.trajectories:
        if not side.response_ids:
            continue
        messages = [{"role": message.role, "content": message.content} for message in side.messages]
        rows.append(
            {
                "data_source": game_of(record.game, record.state).data_source,
                "prompt": messages[: side.num_prompt_messages],
                "messages": messages,
                "agent_name": AGENT_NAME,
                "reward_model": {
                    "style": "rule",
                    "ground_truth": str(record.outcome.best),
                    "normalized_reward": record.outcome.reward_of(side.seat),
                    "game_state": state,
                },
                "extra_info": {
                    "index": record.group_index,
                    "episode_id": record.episode_id,
                    "seat": side.seat,
                    "episode": record.episode,
                    "episodes_per_state": 0,
                    "group_rows": 0,
                    "status": record.outcome.status,
                    "num_turns": record.outcome.num_turns,
                },
                "prompt_ids": side.prompt_ids,
                "response_ids": side.response_ids,
                "response_mask": side.response_mask,
                "response_logprobs": side.response_logprobs,
                "sampling_temperature": record.sampler_of(side).temperature,
                TURN: turns[side.seat],
            }
        )
        turns[side.seat] += 1
    return rows
