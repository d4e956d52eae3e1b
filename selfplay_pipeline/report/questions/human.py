"""Figures of people's questions: human episodes, counted in the same way as the policy's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from pydantic import BaseModel

from selfplay_pipeline.games.abilities import HumanEpisode, HumanEpisodes
from selfplay_pipeline.games.base import Game
from selfplay_pipeline.metrics.bootstrap import Interval
from selfplay_pipeline.report.questions.records import AskingRecord
from selfplay_pipeline.report.questions.statistics import figures_of

FINISHED = "finished"
"""Placeholder for the status of a human episode, whose record has none."""


class HumanReference(BaseModel):
    """Figures of the human episodes.

    The share of messages with a question mark is given twice, since the usually cited 29 % are the mean of the
    episodes' shares.
    """

    counted: str
    games: int
    messages: int
    with_question_mark: float
    with_question_mark_mean_of_episodes: float
    figures: dict[str, Interval]


def human_reference(game: Game) -> HumanReference | None:
    """Returns the figures of the episodes that people played; None if there are no such episodes."""
    if not isinstance(game, HumanEpisodes) or not (episodes := list(game.human_episodes())):
        return None
    marks = [sum("?" in turn.text for turn in episode.turns) for episode in episodes]
    messages = [len(episode.turns) for episode in episodes]
    records = [record for number, episode in enumerate(episodes) for record in _from_each_seat(game, number, episode)]
    return HumanReference(
        counted=game.about_humans,
        games=len(episodes),
        messages=sum(messages),
        with_question_mark=sum(marks) / sum(messages),
        with_question_mark_mean_of_episodes=sum(
            marked / max(1, count) for marked, count in zip(marks, messages, strict=True)
        )
        / len(episodes),
        figures=figures_of(records),
    )


def _from_each_seat(game: Game, number: int, episode: HumanEpisode) -> Iterator[AskingRecord]:
    for seat in range(len(game.roles)):
        yield AskingRecord(
            step=0,
            episode_id=f"human-{number}",
            group=number,
            reward=episode.reward,
            status=FINISHED,
            turns=episode.num_turns,
            **asdict(game.asking(episode.state, episode.turns, seat)),
        )
