"""Episodes as earlier schema versions wrote them, turned into today's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

OLD = re.compile(rb'"schema_version"\s*:\s*1\b')
"""Is in every line of version 1; a text in a line cannot hold it, since quotes are escaped there."""
EPISODE = {"game_id": "episode_id", "play": "episode"}
TURN = {"player": "seat"}
TRAJECTORY = {"player_index": "seat"}
"""Fields of version 1, and what they are called since version 2; version 1 did not know the weights."""


def upgrade(line: dict[str, Any]) -> dict[str, Any]:
    """An episode of version 1 as one of version 2; a line of any other version stays as it is.

    Nothing is checked: what is wrong with a line is found where it is read, under today's names.
    """
    if line.get("schema_version") != 1:
        return line
    new: dict[str, Any] = _named(line, EPISODE) | {"schema_version": 2}
    for key, names in (("turns", TURN), ("trajectories", TRAJECTORY)):
        if isinstance(new.get(key), list):
            new[key] = [_named(item, names) for item in new[key]]
    if isinstance(new.get("policy"), dict):
        new["policy"] = {"weights": ""} | new["policy"]
    return new


def _named(value: Any, names: Mapping[str, str]) -> Any:
    return {names.get(key, key): item for key, item in value.items()} if isinstance(value, dict) else value
