"""How people ask: their games, counted as the policy's dialogues are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from pydantic import BaseModel

from selfplay_pipeline.asking.records import DialogueRecord
from selfplay_pipeline.asking.statistics import figures_of
from selfplay_pipeline.games.base import Game, HumanPlay
from selfplay_pipeline.metrics.bootstrap import Interval

FINISHED = "finished"
"""Stands for the status of a game between people, whose record does not name it."""


class HumanReference(BaseModel):
    """Figures of the human games.

    The share of messages with a question mark is given twice, since the 29 % that are usually cited are the mean of
    the games' shares.
    """

    counted: str
    games: int
    messages: int
    with_question_mark: float
    with_question_mark_mean_of_games: float
    figures: dict[str, Interval]


def human_reference(game: Game) -> HumanReference | None:
    """Figures of the games that people played; None where there are none."""
    plays = list(game.human_plays())
    if not plays:
        return None
    marks = [sum("?" in turn.text for turn in play.turns) for play in plays]
    messages = [len(play.turns) for play in plays]
    records = [record for number, play in enumerate(plays) for record in _from_each_seat(game, number, play)]
    return HumanReference(
        counted=game.about_humans,
        games=len(plays),
        messages=sum(messages),
        with_question_mark=sum(marks) / sum(messages),
        with_question_mark_mean_of_games=sum(
            marked / max(1, count) for marked, count in zip(marks, messages, strict=True)
        )
        / len(plays),
        figures=figures_of(records),
    )


def _from_each_seat(game: Game, number: int, play: HumanPlay) -> Iterator[DialogueRecord]:
    for seat in range(game.num_players):
        yield DialogueRecord(
            step=0,
            game_id=f"human-{number}",
            group=number,
            reward=play.reward,
            status=FINISHED,
            turns=play.num_turns,
            **asdict(game.asking(play.state, play.turns, seat)),
        )
