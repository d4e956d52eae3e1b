"""Reads files of episodes, and checks each episode against the rules of its game.

Every stage after `generate` reads episodes here, so that an impossible one is refused with its file, line and field.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
import shlex
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from pydantic import ValidationError

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.small_files import File, check_regular, read_object
from selfplay_pipeline.games.base import CUT, INVALID, SAME_SCORE, Game, State, Status
from selfplay_pipeline.games.registry import UnknownGameError, game_named
from selfplay_pipeline.generate.episode_wrappers import check_extra
from selfplay_pipeline.generate.records import EpisodeRecord, TurnRecord

READ_AT_ONCE = 1 << 20
"""Size of the read buffer in bytes, enough for several lines; Python's default of 8 kB is shorter than one."""
MAX_LINE = 1 << 26
"""Limit in bytes of one episode as JSON. An episode of two times 100,000 tokens takes about 6 MB."""
GZIP = b"\x1f\x8b"
"""First bytes of a file that is compressed with gzip."""


class NoEpisodeError(ValueError):
    """A line that was never meant as an episode, such as one of another kind of file."""


def parse_episode(line: bytes) -> EpisodeRecord:
    """Returns the episode of one JSON line, checked against the rules of its game.

    Raises:
        ValueError: The line is not a valid episode; the message names the field.
    """
    try:
        record = EpisodeRecord.model_validate_json(line)
    except ValidationError as error:
        if b'"episode_id"' not in line:
            what = f"not an episode ({explain(error)})"
            raise NoEpisodeError(f"{what}; give a file of episodes, as `selfplay generate` writes it") from None
        raise ValueError(explain(error)) from None
    check_rules(record)
    return record


def check_rules(record: EpisodeRecord) -> None:
    """Raises ValueError, which names the field, unless the rules of the game allow the episode."""
    try:
        game = game_named(record.game)
    except UnknownGameError as error:
        raise UnknownGameError(f"field 'game': {error}") from None
    try:
        state = _load(record.game, json.dumps(record.state, sort_keys=True, allow_nan=False))
        game = game.of_state(record.state)
    except (UserError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"field 'state': {error}") from None
    if len(record.seats) != len(game.roles):
        seats, roles = len(record.seats), len(game.roles)
        raise ValueError(f"field '{record.seats_field}': has {seats} seats, but the game has {roles}")
    check_extra(record, game, state)
    for number, turn in enumerate(record.turns):
        _check_turn(f"turns.{number}", turn, game, state)
    outcome = record.outcome
    if outcome.rewards is not None:
        _check_rewards(outcome.rewards, outcome.normalized_reward, game)
    if abs(outcome.best - (best := game.best(state))) > SAME_SCORE:
        raise ValueError(f"field 'outcome.best': {outcome.best:g}, but the state's best score is {best}")
    if outcome.status in game.goals:
        game.check_outcome(state, outcome)
    elif outcome.status == Status.ENGINE_FAILURE:
        raise ValueError("field 'outcome.status': a lost episode is played again, and never stored; remove this line")
    elif outcome.status not in tuple(Status):
        known = ", ".join(sorted({*game.goals, *Status}))
        raise ValueError(f"field 'outcome.status': {outcome.status!r} is not one of {known}")
    elif outcome.normalized_reward > SAME_SCORE:
        raise ValueError(
            f"field 'outcome.normalized_reward': {outcome.normalized_reward}, but {outcome.status} gives 0"
        )


def _check_rewards(rewards: list[float], mean: float, game: Game) -> None:
    if len(rewards) != len(game.roles):
        raise ValueError(f"field 'outcome.rewards': has {len(rewards)}, but the game has {len(game.roles)} seats")
    if abs(sum(rewards) / len(rewards) - mean) > SAME_SCORE:
        raise ValueError(f"field 'outcome.normalized_reward': {mean}, but 'rewards' have another mean")


def _check_turn(where: str, turn: TurnRecord, game: Game, state: State) -> None:
    if turn.action not in (*game.actions, INVALID):
        known = ", ".join(sorted({*game.actions, INVALID}))
        raise ValueError(f"field '{where}.action': {turn.action!r} is not one of {known}")
    if turn.error_kind is not None and turn.error_kind not in (CUT, *game.error_kinds):
        raise ValueError(f"field '{where}.error_kind': the game knows no {turn.error_kind!r}")
    if turn.proposal is not None:
        try:
            game.check_decision(state, turn.proposal)
        except ValueError as error:
            raise ValueError(f"field '{where}.proposal': {error}") from None


@lru_cache(maxsize=64)
def _load(game: str, state: str) -> State:
    return game_named(game).state_from_json(json.loads(state))


class GroupStates:
    """Compares the states of episodes that have one group number. Memory grows by a hash per group."""

    def __init__(self) -> None:
        self._hashes: dict[int, bytes] = {}

    def check(self, record: EpisodeRecord) -> None:
        """Raises ValueError if an earlier episode of the same group has another state."""
        state = hashlib.blake2b(json.dumps(record.state, sort_keys=True).encode(), digest_size=8).digest()
        if self._hashes.setdefault(record.group_index, state) != state:
            raise ValueError(f"field 'state': group {record.group_index} has two different states")


def tell_left_out(path: Path, altered: int) -> None:
    """Log the number of episodes of a file that were left out because messages of a person were altered."""
    if altered:
        logger.warning(f"{path}: {altered} episodes are left out: others heard altered messages of a person in them")


def read_episodes(path: File, *, growing: bool = False) -> Iterator[EpisodeRecord]:
    """Yields the episodes of a file, one line at a time.

    Args:
        growing: Leave out an incomplete last line, which another process may be writing.

    Raises:
        UserError: The file is missing, or a line is invalid; the message names file, line and field.
    """
    path = Path(path)
    for number, line in read_lines(path):
        if not line.strip() or (growing and not line.endswith(b"\n")):
            continue
        try:
            yield parse_episode(line)
        except ValueError as error:
            raise UserError(f"{path}:{number}: {error}{named_at(path, error)}") from None


def named_at(path: Path, error: ValueError) -> str:
    """Returns a hint at the file of a game that this process does not know; "" if it is not known, or for other errors.

    The hint comes from the arguments beside the episodes. The file that it names is not imported: only a user may.

    Args:
        path: File of the episodes.
        error: Error of a line.
    """
    beside = arguments_path(path)
    if not isinstance(error, UnknownGameError) or not beside.is_file():
        return ""
    place = read_object(beside, "selfplay generate").get("game.path")
    return f": --game {shlex.quote(place)}, if it still is the code that played them" if isinstance(place, str) else ""


def read_lines(path: Path, hint: str = "`selfplay generate` writes this file") -> Iterator[tuple[int, bytes]]:
    """Yields the lines of a file, which may be compressed with gzip, with their numbers, counted from 1.

    Args:
        path: The file.
        hint: Advice for the message about a missing file.

    Raises:
        UserError: The file cannot be read, or is parquet or UTF-16, or a line is longer than `MAX_LINE`.
    """
    try:
        with open_lines(path, hint) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                if len(line) > MAX_LINE:
                    raise UserError(f"{path}:{number}: longer than {MAX_LINE >> 20} MiB, the limit of a line; {hint}")
                yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: damaged gzip data ({first_line(error)}); compress the file again") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; {hint}") from None


def open_lines(path: Path, hint: str = "`selfplay generate` writes this file") -> IO[bytes]:
    """Opens a file of JSON lines, which may be compressed with gzip, at its first line: after a byte order mark.

    Raises:
        UserError: The path is no regular file, or the file is parquet or UTF-16 text.
    """
    check_regular(path, hint)
    compressed = is_compressed(path)  # whatever its name is
    file = cast(IO[bytes], gzip.open(path) if compressed else path.open("rb", buffering=READ_AT_ONCE))  # noqa: SIM115
    try:
        start = file.read(4)
        if start == b"PAR1":
            raise UserError(
                f"{path}: a parquet file, but this command reads JSONL, such as the episodes of `selfplay generate`"
            )
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, b"{\0", b"\0{"):
            raise UserError(f"{path}: UTF-16 text; save the file as UTF-8")
        file.seek(len(codecs.BOM_UTF8) if start.startswith(codecs.BOM_UTF8) else 0)
    except BaseException:
        file.close()
        raise
    return file


def is_compressed(path: Path) -> bool:
    """Whether a file is compressed with gzip, so that no line can be added."""
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


def size_of_lines(path: Path) -> int:
    """Returns the number of bytes that `read_lines` yields, for a bar; of compressed files over 4 GiB, a part of it."""
    if not path.is_file():
        return 0
    if not is_compressed(path):
        return path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        return int.from_bytes(file.read(4), "little")


def arguments_path(games: Path) -> Path:
    """Returns the path of the settings that decided a file of episodes; they lie beside it, also beside `.jsonl.gz`."""
    return (games.with_suffix("") if games.suffix == ".gz" else games).with_suffix(".args.json")
