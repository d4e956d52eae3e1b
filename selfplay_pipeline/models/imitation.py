"""Scripted episodes for the tiny model to imitate, in exactly the token format of the pipeline's own trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.games.base import Game, ScriptedPlayer
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream


def imitated_episode(
    game: Game, chat: ChatTokenizer, players: Sequence[ScriptedPlayer], rng: np.random.Generator
) -> list[Stream]:
    """An episode of scripted players on a new state, as the token streams that a policy in their seats would see."""
    state = game.sample_state(rng)
    session, streams = game.start(state), open_streams(game, chat, state)
    while session.status is None:
        text = players[session.seat].act(game.view(session, session.seat), rng)
        stream = streams[session.seat]
        stream.prompt()
        stream.reply(completion([*chat.tokenizer.encode(text, add_special_tokens=False), chat.end_of_turn]))
        for hearer, observation in zip(streams, session.step(text).observations, strict=True):
            hearer.observe(observation)
    return streams


def open_streams(game: Game, chat: ChatTokenizer, state: Any) -> list[Stream]:
    """The empty trajectories of all seats."""
    session = game.start(state)
    openings = [session.opening(seat) for seat in range(game.num_seats)]
    return [Stream(chat, seat, opening.system, [opening.observation]) for seat, opening in enumerate(openings)]


def completion(ids: list[int], finish: FinishReason = FinishReason.STOP) -> Completion:
    """What an engine would have returned for these tokens."""
    return Completion(ids, [0.0] * len(ids), finish, prompt_tokens=0, cached_tokens=0)
