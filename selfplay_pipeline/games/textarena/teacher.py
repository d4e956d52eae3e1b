"""Scripted player for any environment, and the warm start of a tiny model that imitates it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from selfplay_pipeline.games.base import Lesson, Play, Stage
from selfplay_pipeline.games.seeded import SeededGame
from selfplay_pipeline.games.turn_session import Known

BRACKETS = re.compile(r"\[[^\[\]\n]{1,60}\]")
SPEAKERS = re.compile(r"^\[(GAME|Player( \d+)?)\]$", re.IGNORECASE)
INVALID = "attempted an invalid move"
"""Words with which TextArena refuses a turn."""
NEWEST = 0.8
"""Chance that `Bracketed` chooses from the newest text."""
WORDS = re.compile(r"\[[^\[\]\n]{1,20}\]|[^\W\d_]+|[^\w\[\]]{2,20}")
"""Words of a text that become one token each: moves in brackets, words, and runs of signs and spaces."""
READ = 8
"""Number of episodes whose words a tiny model gets as tokens."""
ROWS = {"self-play": 1024, "short": 96}
"""Number of rows that a tiny model imitates, by lesson; each has several turns."""
BATCH = 8
"""Number of rows per optimizer step."""


class Bracketed:
    """Writes a random text in brackets that it has read, usually one of the newest text: often a legal move."""

    def act(self, view: Known, rng: np.random.Generator) -> str:
        refused = view.said[-1:] if INVALID in view.read[-1] else ()
        found = [[text for text in BRACKETS.findall(read) if not SPEAKERS.match(text)] for read in view.read]
        found = [[text for text in texts if text not in refused] or texts for texts in found if texts]
        if not found:
            return "[1]"
        texts = found[-1] if rng.random() < NEWEST else [text for texts in found for text in texts]
        return str(texts[rng.integers(len(texts))])


def lessons_of(game: SeededGame) -> dict[str, Lesson]:
    """Returns the warm starts of a tiny model: it imitates `Bracketed` in every seat, whoever wins."""
    seats = len(game.roles)
    words = {word for text in _texts(game) for word in WORDS.findall(text)}
    return {
        name: Lesson(
            folder=Path(f"data/textarena_{game.config.env}_model"),
            words=("system", "user", "assistant", *sorted(words), *"0123456789"),
            stages=(Stage((Play(("bracketed",) * seats, rows // seats),), epochs=1, batch_size=BATCH),),
        )
        for name, rows in ROWS.items()
    }


def _texts(game: SeededGame) -> Iterator[str]:
    """Yields all texts that the seats read in a few episodes."""
    for number in range(READ):
        rng = np.random.default_rng(number)
        session = game.start(game.sample_state(rng))
        while session.seats:
            seat = session.seats[0]
            session.step(seat, Bracketed().act(game.view(session, seat), rng))
        for seat, _ in enumerate(game.roles):
            yield session.opening(seat).system
            yield from game.view(session, seat).read
