"""DialOp's games of human pairs, which lie in data/dialop with their licence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from selfplay_pipeline.games.base import HumanEpisode, Said
from selfplay_pipeline.games.matching.states import load_state

GAMES = Path(__file__).parent / "data" / "dialop" / "optimization_human.jsonl"
ABOUT = (
    "games between two humans on 8×8 boards (data/dialop), each looked at from both seats, counted by the rules of "
    "games/matching/questions.py like the policy's episodes; neither human was shy"
)


def human_episodes(path: Path = GAMES) -> Iterator[HumanEpisode]:
    """Read DialOp's games; none where the file is not at hand."""
    for line in path.read_text().splitlines() if path.exists() else ():
        game = json.loads(line)
        state = load_state(game)
        said = [entry for entry in game["action_log"] if entry["type"] == "message"]
        yield HumanEpisode(
            state=state,
            turns=[Said(entry["player"], entry["message"]["data"]) for entry in said],
            reward=game["proposal_reward"] / state.best,
            num_turns=len(game["action_log"]),
        )
