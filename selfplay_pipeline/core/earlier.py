"""Names of earlier versions in configurations and in files that this program wrote, and what they are called today."""

from __future__ import annotations

import re
from typing import Any

from selfplay_pipeline.core.errors import UserError

NAMES = {
    "num_games": "num_episodes",
    "plays_per_state": "episodes_per_state",
    "plays": "episodes",
    "plays_lost": "episodes_lost",
    "plays_per_second": "episodes_per_second",
    "held_out_plays": "held_out_episodes",
    "single_play_groups_dropped": "single_episode_groups_dropped",
    "opponent": "partner",
    "keep_server": "keep_processes",
    "num_gpus": "gpus_per_node",
    "reward_first": "reward_seat_0",
    "reward_second": "reward_seat_1",
    "illegal_per_game": "illegal_per_episode",
    "messages_per_game": "messages_per_episode",
    "questions_per_game": "questions_per_episode",
    "turns_per_game": "turns_per_episode",
}
"""Keys of YAML and JSON. Games files and parquet have schema versions of their own: see `generate/records.py`."""


def renamed(data: Any) -> Any:
    """A value with today's keys in it and in all objects inside; of a key such as `generate.num_games` the last part.

    Raises:
        UserError: a key is there by both names.
    """
    if not isinstance(data, dict):
        return data
    found = {}
    for key, value in data.items():
        today = today_of(key)
        if today != key and today in data:
            raise UserError(f"key '{key}' is the earlier name of '{today}', which is there too; keep one of them")
        found[today] = renamed(value)
    return found


def today_of(key: str) -> str:
    """What a key is called today."""
    return re.sub(r"[^./]+$", lambda last: NAMES.get(last.group(), last.group()), key)
