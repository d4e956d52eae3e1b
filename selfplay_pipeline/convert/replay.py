"""Replays of recorded episodes: the tokens of a model that did not play them, and the messages of each seat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from selfplay_pipeline.config.schema import History
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import Update
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.games.base import CUT, Game, Session, State, Status, Step
from selfplay_pipeline.generate.control_tokens import without_control
from selfplay_pipeline.generate.episode_wrappers import RenamedSession, check_heard_as_said, is_altered, names_of, said
from selfplay_pipeline.generate.read_records import named_at, parse_episode, read_lines, size_of_lines, tell_left_out
from selfplay_pipeline.generate.records import ChatMessage, EpisodeRecord, Trajectory, TurnRecord
from selfplay_pipeline.generate.trajectory import BUILDERS, ChatTokenizer

OTHERWISE = "give the configuration (--config) that it was played with"


class Recorded(NamedTuple):
    """An episode as it was read.

    Attributes:
        file: Position of its file among the files.
        where: `FILE:LINE`.
        line: The line in the file.
    """

    file: int
    where: str
    line: bytes
    record: EpisodeRecord


def recorded_episodes(files: Sequence[Path], game: Game, shown: Update) -> Iterator[Recorded]:
    """Yields the episodes of all files in order, whoever played them.

    Episodes in which others heard altered messages of a person are left out, and a warning counts them.

    Args:
        files: Files of episodes.
        game: The game of all episodes.
        shown: Progress in bytes.

    Raises:
        UserError: A line is invalid, or an episode is of another game or has swapped messages.
    """
    size, done = sum(map(size_of_lines, files)), 0
    for file, path in enumerate(files):
        altered = 0
        for number, line in read_lines(path):
            done += len(line)
            shown(done, size, lambda: "bytes")
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                record = parse_episode(line)
                if is_altered(record):
                    altered += 1
                    continue
                check_heard_as_said(record)
                _check_game(record, game)
            except ValueError as error:
                raise UserError(f"{where}: {error}{named_at(path, error)}") from None
            yield Recorded(file, where, line, record)
        tell_left_out(path, altered)


def state_for(record: EpisodeRecord, game: Game) -> State:
    """Returns the state of a recorded episode of the configured game.

    Raises:
        ValueError: The episode is of another game or configuration; the message names the field.
    """
    _check_game(record, game)
    try:
        game.check_fits(state := game.state_from_json(record.state))
    except UserError as error:
        raise ValueError(f"field 'state': {error}; {OTHERWISE}") from None
    return state


def _check_game(record: EpisodeRecord, game: Game) -> None:
    if record.game != game.name:
        raise ValueError(
            f"field 'game': an episode of {record.game}, but the configured game is {game.name}; {OTHERWISE}"
        )


def replay(record: EpisodeRecord, game: Game, chat: ChatTokenizer, history: History = "appended") -> list[Trajectory]:
    """Replay all turns of an episode and return each seat's trajectories as the model's tokens.

    In other-play, the seats read and say the names that they saw.

    Only the text of the turns is used, whoever played; observations come from the game's session. A turn is tokenised
    once and followed by the end-of-turn token. Legal turns have mask 1, illegal turns have mask 0 like observations.
    Log-probs are 0, since the model did not sample the tokens.

    Returns:
        The trajectories of all seats in order: one of each seat, whose response is empty without a legal turn; with
        rendered history, one of each legal turn.

    Raises:
        ValueError: The replay differs from the recorded episode; the message names the field.
    """
    session = _session(record, game)
    openings = [session.opening(seat) for seat, _ in enumerate(game.roles)]
    streams = [
        BUILDERS[history](chat, seat, opening.system, [opening.observation]) for seat, opening in enumerate(openings)
    ]
    for number, turn, step in _steps(record, session):
        try:
            streams[turn.seat].say(turn.text, cut=turn.error_kind == CUT, learned=step.error is None)
        except EngineError as error:
            raise ValueError(f"field 'turns.{number}': {error}") from None
        for stream, observation in zip(streams, step.observations, strict=True):
            stream.observe(observation)
    return [trajectory for stream in streams for trajectory in stream.trajectories()]


def conversations(record: EpisodeRecord, game: Game) -> list[list[ChatMessage]]:
    """Returns the messages that each seat read and wrote, without control tokens.

    Between two turns of a seat, its observations are one message.

    Raises:
        ValueError: The replay differs from the recorded episode; the message names the field.
    """
    session = _session(record, game)
    openings = [session.opening(seat) for seat, _ in enumerate(game.roles)]
    seats = [[ChatMessage(role="system", content=opening.system)] for opening in openings]
    heard = [[opening.observation] for opening in openings]

    def hear(seat: int) -> None:
        if heard[seat]:
            seats[seat].append(ChatMessage(role="user", content=without_control("\n".join(heard[seat]))))
            heard[seat] = []

    for _, turn, step in _steps(record, session):
        hear(turn.seat)
        seats[turn.seat].append(ChatMessage(role="assistant", content=without_control(turn.text)))
        for seat, observation in enumerate(step.observations):
            heard[seat] += [observation] if observation else []
    for seat, _ in enumerate(seats):
        hear(seat)
    return seats


def _session(record: EpisodeRecord, game: Game) -> Session:
    """Returns a session of the game at the beginning of a recorded episode."""
    state = state_for(record, game)
    names = names_of(record)
    return game.start(state) if names is None else RenamedSession(game, state, names)


def _steps(record: EpisodeRecord, session: Session) -> Iterator[tuple[int, TurnRecord, Step]]:
    """Yields the number, the record and the replayed step of each turn, and checks them and the end of the episode."""
    for number, turn in enumerate(record.turns):
        where = f"field 'turns.{number}'"
        if turn.seat not in session.seats:
            over = f"the episode has ended ({session.status})" if session.status else "it is another seat's turn"
            raise ValueError(f"{where}: {over}; {OTHERWISE}")
        own = said(turn)
        turn = turn if own == turn.text else turn.model_copy(update={"text": own})
        step = session.step(turn.seat, turn.text, cut=turn.error_kind == CUT)
        if step.action != turn.action:
            raise ValueError(f"{where}: recorded as {turn.action}, but the replay gives {step.action}; {OTHERWISE}")
        yield number, turn, step
    if record.outcome.status not in (session.status, Status.CONTEXT_LENGTH, Status.ABANDONED):
        raise ValueError(
            f"field 'outcome.status': recorded as {record.outcome.status}, but the replay gives "
            f"{session.status}; {OTHERWISE}"
        )
