"""Rows of train.parquet, as `convert` would write them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from selfplay_pipeline.convert.rows import FURTHER, METADATA_KEY, TURN, episode_to_rows, schema_with
from selfplay_pipeline.generate.records import EpisodeRecord


def training_row(
    group: int,
    episode: int,
    seat: int,
    reward: float,
    *,
    prompt: list[int],
    response: list[int],
    mask: list[int],
    logprobs: list[float],
    episodes_per_state: int,
    temperature: float,
) -> dict[str, Any]:
    """One row."""
    message = {"role": "system", "content": "w2"}
    return {
        "data_source": "selfplay",
        "prompt": [message],
        "messages": [message],
        "agent_name": "selfplay",
        "reward_model": {"style": "rule", "ground_truth": "", "normalized_reward": reward, "game_state": "{}"},
        "extra_info": {
            "index": group, "episode_id": f"t-g{group:06d}-p{episode}", "seat": seat, "episode": episode,
            "status": "agreed", "episodes_per_state": episodes_per_state, "num_turns": 4,
        },
        "prompt_ids": prompt,
        "response_ids": response,
        "response_mask": mask,
        "response_logprobs": logprobs,
        "sampling_temperature": temperature,
    }  # fmt: skip


def turns_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same tokens as rows of one turn each, as `convert` writes them with rendered history."""
    found = []
    for row in rows:
        edges = np.flatnonzero(np.diff(row["response_mask"], prepend=0, append=0)).tolist()
        for turn, (start, end) in enumerate(zip(edges[::2], edges[1::2], strict=True)):
            own = {name: row[name][start:end] for name in ("response_ids", "response_mask", "response_logprobs")}
            found.append(row | own | {"prompt_ids": [*row["prompt_ids"], *row["response_ids"][:start]], TURN: turn})
    return found


def rows_of(record: EpisodeRecord, episodes_per_state: int) -> list[dict[str, Any]]:
    """The rows of an episode, with the group size, which `convert` adds when it has read all episodes."""
    rows = episode_to_rows(record)
    for row in rows:
        row["extra_info"]["episodes_per_state"] = episodes_per_state
    return rows


def write_training_rows(path: Path, rows: Sequence[dict[str, Any]], **facts: Any) -> Path:
    """Rows, each with the number of those of its group, and what the file says of itself."""
    counts = Counter(row["extra_info"]["index"] for row in rows)
    for row in rows:
        row["extra_info"]["group_rows"] = counts[row["extra_info"]["index"]]
    known = {
        "schema_version": 2,
        "temperature": rows[0]["sampling_temperature"],
        "episodes_per_state": rows[0]["extra_info"]["episodes_per_state"],
    }
    turns = any(row.get(TURN) for row in rows)
    further = [name for name in FURTHER if name in rows[0] and (turns or name != TURN)]
    table = pa.Table.from_pylist(list(rows), schema_with(*further))
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: json.dumps(known | facts).encode()}), path)
    return path
