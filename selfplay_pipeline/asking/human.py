"""How humans ask: DialOp's games of human pairs, counted as the policy's dialogues are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from selfplay_pipeline.asking.records import DialogueRecord
from selfplay_pipeline.asking.statistics import figures_of
from selfplay_pipeline.games.base import Said
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.questions import asking
from selfplay_pipeline.games.matching.rules import AGREED
from selfplay_pipeline.metrics.bootstrap import Interval

GAMES = Path(__file__).parents[2] / "data" / "dialop" / "optimization_human.jsonl"
COUNTED = (
    "games between two humans on 8×8 boards (data/dialop), each looked at from both seats, counted by the rules of "
    "games/matching/questions.py like the policy's dialogues; neither human was shy"
)


class HumanReference(BaseModel):
    """Figures of the human games.

    The share of messages with a question mark is given twice, since the 29 % that are usually cited are the mean of
    the games' shares.
    """

    counted: str = COUNTED
    games: int
    messages: int
    with_question_mark: float
    with_question_mark_mean_of_games: float
    figures: dict[str, Interval]


def human_reference(path: Path = GAMES) -> HumanReference | None:
    """Read DialOp's games; None where the file is not at hand."""
    if not path.exists():
        return None
    records: list[DialogueRecord] = []
    shares, marked, messages = [], 0, 0
    for number, line in enumerate(path.read_text().splitlines()):
        game = json.loads(line)
        said = [entry for entry in game["action_log"] if entry["type"] == "message"]
        turns = [Said(entry["player"], entry["message"]["data"]) for entry in said]
        marks = sum("?" in turn.text for turn in turns)
        shares.append(marks / max(1, len(turns)))
        marked, messages = marked + marks, messages + len(turns)
        records += _from_both_seats(number, game, turns)
    return HumanReference(
        games=len(shares),
        messages=messages,
        with_question_mark=marked / messages,
        with_question_mark_mean_of_games=sum(shares) / len(shares),
        figures=figures_of(records),
    )


def _from_both_seats(number: int, game: dict[str, Any], turns: Sequence[Said]) -> list[DialogueRecord]:
    state = MatchingGame().load_state(game)
    fixed: dict[str, Any] = {
        "step": 0,
        "game_id": f"human-{number}",
        "group": number,
        "reward": game["proposal_reward"] / state.best,
        "status": AGREED,
        "turns": len(game["action_log"]),
    }
    return [DialogueRecord(**fixed, **asdict(asking(turns, state, seat))) for seat in (0, 1)]
