"""Reads recorded games between people: logs of actions, gzipped, one JSON object a line."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.games.base import HumanEpisode, Said, State

RecordedGame = dict[str, Any]
"""One game: `action_log`, `result`, and what each player read."""


def read_games(path: Path) -> Iterator[RecordedGame]:
    """Yields the games of a gzipped JSONL file; none if the file is missing."""
    if path.exists():
        for line in gzip.decompress(path.read_bytes()).decode("utf-8").splitlines():
            yield json.loads(line)


def episodes_of(
    games: Iterable[RecordedGame],
    state_of: Callable[[RecordedGame], State],
    legal_turns: Callable[[RecordedGame, Counter[str]], Sequence[Said]],
) -> Iterator[HumanEpisode]:
    """Yields recorded games as episodes; their reward is `result.norm`.

    Args:
        games: The games.
        state_of: Returns the state of a game.
        legal_turns: Returns the turns that our rules allow, and counts the other actions by reason.
    """
    for game in games:
        left_out: Counter[str] = Counter()
        legal = legal_turns(game, left_out)
        said = [entry for entry in game["action_log"] if entry["type"] == "message"]
        yield HumanEpisode(
            state=state_of(game),
            turns=[Said(entry["player"], entry["message"]["data"]) for entry in said],
            reward=game["result"]["norm"],
            num_turns=len(game["action_log"]),
            legal=legal,
            left_out=+left_out,
        )
