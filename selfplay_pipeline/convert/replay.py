"""The text of an episode as the tokens of a model that did not play it, for the model to imitate."""

from __future__ import annotations

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import CUT, Game, Status
from selfplay_pipeline.generate.records import EpisodeRecord, Trajectory
from selfplay_pipeline.generate.trajectory import ChatTokenizer, Stream

BROKEN_OFF = (Status.CONTEXT_LENGTH, Status.ENGINE_FAILURE)
"""Statuses of episodes that the players broke off, not the rules."""
OTHERWISE = "give the configuration (--config) that it was played with"


def replay(record: EpisodeRecord, game: Game, chat: ChatTokenizer) -> list[Trajectory]:
    """Take every turn of an episode again, and keep what each seat would have read and said as the model's tokens.

    Whoever played, a script, people or another model, only the text of the turns is used; what each seat hears comes
    from the game's session. A turn is tokenised once, and followed by the token that ends one. Legal turns have mask
    1; an illegal one is read like an observation, so that nobody learns it. Log-probs are 0, since nobody sampled.

    Returns:
        A trajectory for each seat; that of a seat without a legal turn has no response.

    Raises:
        ValueError: the episode went otherwise than it does under this game's configuration; names the field.
    """
    try:
        game.check_fits(state := game.state_from_json(record.state))
    except UserError as error:
        raise ValueError(f"field 'state': {error}") from None
    session = game.start(state)
    openings = [session.opening(seat) for seat, _ in enumerate(game.roles)]
    streams = [Stream(chat, seat, opening.system, [opening.observation]) for seat, opening in enumerate(openings)]
    for number, turn in enumerate(record.turns):
        where = f"field 'turns.{number}'"
        if turn.seat not in session.seats:
            over = f"the episode has ended ({session.status})" if session.status else "it is another seat's turn"
            raise ValueError(f"{where}: {over}; {OTHERWISE}")
        cut = turn.error_kind == CUT
        step = session.step(turn.seat, turn.text, cut=cut)
        if step.action != turn.action:
            raise ValueError(f"{where}: recorded as {turn.action}, but it is {step.action}; {OTHERWISE}")
        try:
            streams[turn.seat].say(turn.text, cut=cut, learned=step.error is None)
        except EngineError as error:
            raise ValueError(f"{where}: {error}") from None
        for stream, observation in zip(streams, step.observations, strict=True):
            stream.observe(observation)
    if record.outcome.status not in (session.status, *BROKEN_OFF):
        raise ValueError(
            f"field 'outcome.status': recorded as {record.outcome.status}, but it is {session.status}; {OTHERWISE}"
        )
    return [stream.finish() for stream in streams]
