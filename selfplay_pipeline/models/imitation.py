"""Scripted episodes for the tiny model to imitate, in exactly the token format of the pipeline's own trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from selfplay_pipeline.games.base import Game, ScriptedPlayer
from selfplay_pipeline.generate.episode import Episode, Reply
from selfplay_pipeline.generate.players import SeatedScript
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream


@dataclass(kw_only=True)
class SeatedTeacher(SeatedScript):
    """A script whose turns become tokens, as if a policy in its seat had sampled them."""

    stream: Stream

    def observe(self, text: str) -> None:
        self.stream.observe(text)

    async def act(self) -> Reply:
        reply = await super().act()
        self.stream.say(reply.text)
        return reply


def imitated_episode(
    game: Game, chat: ChatTokenizer, players: Sequence[ScriptedPlayer], rng: np.random.Generator
) -> list[Stream]:
    """An episode of scripted players on a new state, as the token streams that a policy in their seats would see."""
    session = game.start(game.sample_state(rng))
    openings = [session.opening(seat) for seat in range(len(players))]
    streams = [Stream(chat, seat, opening.system, [opening.observation]) for seat, opening in enumerate(openings)]
    seats = [
        SeatedTeacher(player, partial(game.view, session, stream.seat), rng, stream=stream)
        for player, stream in zip(players, streams, strict=True)
    ]
    Episode(session, list(seats)).play_out()
    return streams
