"""Tokenisation of recorded episodes for a model that did not play them, for imitation learning."""

from __future__ import annotations

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import CUT, Game, Status
from selfplay_pipeline.generate.records import EpisodeRecord, Trajectory
from selfplay_pipeline.generate.trajectory import ChatTokenizer, TrajectoryBuilder

OTHERWISE = "give the configuration (--config) that it was played with"


def replay(record: EpisodeRecord, game: Game, chat: ChatTokenizer) -> list[Trajectory]:
    """Replay all turns of an episode and return each seat's trajectory as the model's tokens.

    Only the text of the turns is used, whoever played; observations come from the game's session. A turn is tokenised
    once and followed by the end-of-turn token. Legal turns have mask 1, illegal turns have mask 0 like observations.
    Log-probs are 0, since the model did not sample the tokens.

    Returns:
        One trajectory per seat; without a legal turn, its response is empty.

    Raises:
        ValueError: The replay differs from the recorded episode; the message names the field.
    """
    try:
        game.check_fits(state := game.state_from_json(record.state))
    except UserError as error:
        raise ValueError(f"field 'state': {error}") from None
    session = game.start(state)
    openings = [session.opening(seat) for seat, _ in enumerate(game.roles)]
    streams = [
        TrajectoryBuilder(chat, seat, opening.system, [opening.observation]) for seat, opening in enumerate(openings)
    ]
    for number, turn in enumerate(record.turns):
        where = f"field 'turns.{number}'"
        if turn.seat not in session.seats:
            over = f"the episode has ended ({session.status})" if session.status else "it is another seat's turn"
            raise ValueError(f"{where}: {over}; {OTHERWISE}")
        cut = turn.error_kind == CUT
        step = session.step(turn.seat, turn.text, cut=cut)
        if step.action != turn.action:
            raise ValueError(f"{where}: recorded as {turn.action}, but the replay gives {step.action}; {OTHERWISE}")
        try:
            streams[turn.seat].say(turn.text, cut=cut, learned=step.error is None)
        except EngineError as error:
            raise ValueError(f"{where}: {error}") from None
        for stream, observation in zip(streams, step.observations, strict=True):
            stream.observe(observation)
    if record.outcome.status not in (session.status, Status.CONTEXT_LENGTH, Status.ABANDONED):
        raise ValueError(
            f"field 'outcome.status': recorded as {record.outcome.status}, but the replay gives "
            f"{session.status}; {OTHERWISE}"
        )
    return [stream.finish() for stream in streams]
