"""Reader of train.parquet and val.parquet, with checks for files that another program wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from selfplay_pipeline.convert.rows import (
    METADATA_KEY,
    OF_EPISODES,
    PARTNER,
    SCHEMA,
    TRAINED,
    TURN,
    schema_with,
)  # fmt: skip
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.small_files import check_regular
from selfplay_pipeline.games.base import SAME_SCORE
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.generate.records import SCHEMA_VERSION
from selfplay_pipeline.generate.token_streams import MAX_COUNT, Lists, Streams, first_fault
from selfplay_pipeline.metrics.signal import Scored

ROWS_AT_A_TIME = 1024
AGAIN = "convert the episodes again"
PANDAS = b"pandas"
"""Key of the metadata that pandas writes."""
NO_TRUNCATION = {"top_p": 1, "top_k": -1, "repetition_penalty": 1}
"""Metadata values that mean sampling with a temperature only: no top-p, no top-k and no repetition penalty."""
NUMBERS = {
    "index": "extra_info",
    "episode": "extra_info",
    "seat": "extra_info",
    "episodes_per_state": "extra_info",
    "group_rows": "extra_info",
    "normalized_reward": "reward_model",
}
"""Struct column of each field that holds one number per row."""
MASK = "response_mask"
STREAMS = ("prompt_ids", "response_ids", MASK, "response_logprobs")
TEMPERATURE = "sampling_temperature"
PROMPT = "prompt"
SOURCE = "data_source"


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a file as columns, limited to the fields that training needs."""

    index: NDArray[np.int64]
    episode: NDArray[np.int64]
    seat: NDArray[np.int64]
    episodes_per_state: NDArray[np.int64]
    group_rows: NDArray[np.int64]
    normalized_reward: NDArray[np.float64]
    """The game's own reward."""
    trained_reward: NDArray[np.float64]
    """Reward that is trained on: the game's own, unless the file has a column for another one."""
    sampling_temperature: NDArray[np.float64]
    num_seats: NDArray[np.int64]
    """Number of seats of each row's game; MAX_COUNT for an unknown game."""
    streams: Streams
    shared_reward: bool
    """Whether all seats of an episode have the same reward."""
    partner: list[str]
    """Partners of each row's seat, as part of its group's key; all "" if every state of the file has the same partners.
    """
    turn: NDArray[np.int64]
    """Number of each row among the rows of its seat and episode; all 0 unless each turn is a row."""

    def scored(self, file: int) -> list[Scored[tuple[int, int]]]:
        """Returns the rewards of the rows with their group keys.

        Args:
            file: Index of the rows' file among all files.
        """
        numbers = zip(self.index.tolist(), self.episode.tolist(), self.seat.tolist(), strict=True)
        return [
            Scored((file, index), episode, seat, reward, not self.shared_reward, partner)
            for (index, episode, seat), reward, partner in zip(
                numbers, self.trained_reward.tolist(), self.partner, strict=True
            )
        ]


class Sampler(NamedTuple):
    """The checkpoint that sampled the rows of a file."""

    checkpoint: str
    """Recorded folder or hub name of the checkpoint."""
    weights: str
    """Content hash of the checkpoint; empty if an attached server played a hub model."""


def sampler_of(path: Path) -> Sampler | None:
    """Returns the checkpoint that sampled the rows of a file; None if the file does not record it.

    Raises:
        UserError: The file is missing, damaged or of another version.
    """
    facts = _facts(path, _open(path).schema_arrow.metadata or {})
    found = Sampler(facts.get("checkpoint") or "", facts.get("weights") or "")
    return found if found.checkpoint and all(isinstance(value, str) for value in found) else None


def read_table(path: Path) -> pa.Table:
    """Returns the rows of a file with all their columns.

    Raises:
        UserError: The file is missing, damaged or of another format.
    """
    reader = _open(path)
    _facts(path, reader.schema_arrow.metadata or {})
    _check_columns(path, reader.schema_arrow)
    with readable(path):
        return reader.read()


def read_rows(path: Path, vocabulary: int | None = None) -> Iterator[Rows]:
    """Yields the rows of a file in batches, after checking each row.

    Args:
        path: The file.
        vocabulary: Size of the model's vocabulary; None if it is unknown.

    Raises:
        UserError: The file is missing, damaged or of another format, or a row is impossible. The message names file,
            row and field.
    """
    reader = _open(path)
    shared = _facts(path, reader.schema_arrow.metadata or {}).get("shared_reward", True) is True
    _check_columns(path, reader.schema_arrow)
    further = [name for name in OF_EPISODES if name in reader.schema_arrow.names]
    temperature = None
    episodes: list[tuple[NDArray[Any], ...]] = []
    columns = [
        *dict.fromkeys(NUMBERS.values()),
        TEMPERATURE,
        PROMPT,
        SOURCE,
        *STREAMS,
        *further,
    ]
    first = 0
    for batch in batches(path, reader, columns):
        rows = _rows(path, first, batch, shared)
        _check(path, first, rows, vocabulary)
        temperature = rows.sampling_temperature[0] if temperature is None else temperature
        others = np.flatnonzero(rows.sampling_temperature != temperature)
        if len(others):
            what = f"{rows.sampling_temperature[others[0]]}, but {temperature} in the rows before"
            raise _impossible(path, first + int(others[0]), TEMPERATURE, what)
        episodes.append((rows.index, rows.episode, rows.seat, rows.turn, rows.trained_reward, rows.group_rows))
        first += len(rows.index)
        yield rows
    if episodes:
        _check_episodes(path, shared, *map(np.concatenate, zip(*episodes, strict=True)))


def _check_episodes(path: Path, shared: bool, *columns: NDArray[Any]) -> None:
    """Raises UserError unless each turn of an episode occurs once and each group has all its rows.

    If seats share a reward, all seats of an episode must have the same one, and otherwise all turns of a seat.
    """
    order = np.lexsort(columns[3::-1])  # stable for equal rows
    groups, episodes, seats, turns, rewards, written = (column[order] for column in columns)
    same_episode = (groups[1:] == groups[:-1]) & (episodes[1:] == episodes[:-1])
    same_seat = same_episode & (seats[1:] == seats[:-1])
    for at in np.flatnonzero(same_seat & (turns[1:] == turns[:-1]))[:1]:
        what = f"group {groups[at]}, episode {episodes[at]}, seat {seats[at]} is in row {order[at]} too"
        raise _impossible(path, int(order[at + 1]), "extra_info", what)
    rewarded_alike = same_episode if shared else same_seat
    for at in np.flatnonzero(rewarded_alike & (np.abs(np.diff(rewards)) > SAME_SCORE))[:1]:
        what = f"{rewards[at + 1]}, but {rewards[at]} in another row of group {groups[at]}, episode {episodes[at]}"
        raise _impossible(path, int(order[at + 1]), "normalized_reward", what)
    _, of_row, counts = np.unique(groups, return_inverse=True, return_counts=True)
    for at in np.flatnonzero(written != counts[of_row])[:1]:
        what = f"group {groups[at]} was written with {written[at]} rows, but has {counts[of_row[at]]}"
        raise _impossible(path, int(order[at]), "group_rows", what)


def _impossible(path: Path, row: int, field: str, what: str, remedy: str = AGAIN) -> UserError:
    return UserError(f"{path}: row {row}: field '{field}': {what}; {remedy}")


@contextmanager
def readable(path: Path, remedy: str = AGAIN) -> Iterator[None]:
    """Turns pyarrow's errors while reading a parquet file into a UserError.

    Raises:
        UserError: The file cannot be read; the message ends with `remedy`.
    """
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        raise UserError(f"{path}: not a readable parquet file: {first_line(error)}; {remedy}") from None


def check_there(path: Path) -> None:
    """Raises UserError unless the path is a file."""
    if not path.exists():
        raise UserError(f"{path}: no such file; `selfplay convert` writes it")
    check_regular(path, "`selfplay convert` writes train.parquet")


def _open(path: Path) -> pq.ParquetFile:
    check_there(path)
    with readable(path):
        return pq.ParquetFile(path)


def batches(
    path: Path, reader: pq.ParquetFile, columns: Sequence[str] | None = None, remedy: str = AGAIN
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file in batches that are not empty; arguments as for `readable`."""
    found = reader.iter_batches(batch_size=ROWS_AT_A_TIME, columns=columns)
    while True:
        with readable(path, remedy):
            batch = next(found, None)
        if batch is None:
            return
        if batch.num_rows:
            yield batch


def _facts(path: Path, metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Returns the decoded metadata of a file; raises UserError if they exclude reading the rows or training on them."""
    if METADATA_KEY not in metadata and PANDAS in metadata:
        raise UserError(
            f"{path}: written by pandas, which drops the metadata of `selfplay convert`, such as the model that "
            "sampled the rows; convert the episodes again, and change rows with pyarrow (Table.replace_schema_metadata)"
        )
    try:
        facts = json.loads(metadata.get(METADATA_KEY, b"{}"))
    except (ValueError, RecursionError):
        raise UserError(f"{path}: its metadata 'selfplay' is not JSON; convert the episodes again") from None
    if not isinstance(facts, dict):
        raise UserError(f"{path}: its metadata 'selfplay' is not a JSON object; convert the episodes again")
    version = facts.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: written in version {version} of the format, but this program reads version {SCHEMA_VERSION}; "
            "convert the episodes again"
        )
    for key, neutral in NO_TRUNCATION.items():
        if facts.get(key, neutral) != neutral:
            raise UserError(
                f"{path}: sampled with {key}={facts[key]}; the log-probs do not include it; sample without it"
            )
    return facts


def _check_columns(path: Path, schema: pa.Schema) -> None:
    for name, column in NUMBERS.items():
        if schema.names.count(column) != 1 or not pa.types.is_struct(schema.field(column).type):
            raise UserError(f"{path}: no column {column!r} of fields; was it written by `selfplay convert`?")
        _check_column(
            path, name, pa.schema(list(schema.field(column).type)), pa.schema(list(SCHEMA.field(column).type))
        )
    ours = schema_with(*OF_EPISODES)
    further = [name for name in OF_EPISODES if name in schema.names]
    for name in (*STREAMS, TEMPERATURE, PROMPT, SOURCE, *further):
        _check_column(path, name, schema, ours)


def _check_column(path: Path, name: str, theirs: pa.Schema, ours: pa.Schema) -> None:
    if theirs.names.count(name) != 1:
        raise UserError(f"{path}: no column {name!r}; was it written by `selfplay convert`?")
    found, expected = theirs.field(name).type, ours.field(name).type
    if not _alike(found, expected):
        raise UserError(f"{path}: column {name!r} is {found}, not {expected}; was it written by `selfplay convert`?")


def _rows(path: Path, first: int, batch: pa.RecordBatch, shared: bool) -> Rows:
    numbers = {}
    trained = [TRAINED] * (TRAINED in batch.schema.names)
    for name in (*NUMBERS, TEMPERATURE, *trained):
        column = batch.column(NUMBERS.get(name, name))
        values = pc.struct_field(column, name) if name in NUMBERS else column
        _check_nulls(path, first, name, values)
        numbers[name] = values.to_numpy(zero_copy_only=False)
    _check_nulls(path, first, PROMPT, batch.column(PROMPT))
    known = {game.data_source: len(game.roles) for game in all_games()}
    num_seats = np.array([known.get(source, MAX_COUNT) for source in batch.column(SOURCE).to_pylist()])
    lists = {}
    for name in STREAMS:
        column = batch.column(name)
        _check_nulls(path, first, name, column)
        lengths = pc.list_value_length(column).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        values = column.flatten()
        if values.null_count:
            at = int(values.is_null().to_numpy(zero_copy_only=False).argmax())
            row = first + int(np.searchsorted(offsets, at, side="right")) - 1
            raise _impossible(path, row, name, "an entry is null")
        lists[name] = Lists(values.to_numpy(), offsets)
    numbers.setdefault(TRAINED, numbers["normalized_reward"])
    turn = np.zeros(batch.num_rows, np.int64)
    if TURN in batch.schema.names:
        _check_nulls(path, first, TURN, batch.column(TURN))
        turn = batch.column(TURN).to_numpy(zero_copy_only=False)
    partner = [""] * batch.num_rows
    if PARTNER in batch.schema.names:
        _check_nulls(path, first, PARTNER, batch.column(PARTNER))
        partner = batch.column(PARTNER).to_pylist()
    streams = Streams(**lists)
    return Rows(**numbers, num_seats=num_seats, streams=streams, shared_reward=shared, partner=partner, turn=turn)


def _check_nulls(path: Path, first: int, name: str, values: pa.Array) -> None:
    if values.null_count:
        raise _impossible(path, first + int(values.is_null().to_numpy(zero_copy_only=False).argmax()), name, "is null")


def _check(path: Path, first: int, rows: Rows, vocabulary: int | None) -> None:
    for field, least, below, expected in (
        ("index", 0, MAX_COUNT, f"0 to {MAX_COUNT - 1}"),
        ("episodes_per_state", 1, MAX_COUNT, f"1 to {MAX_COUNT - 1}"),
        ("episode", 0, rows.episodes_per_state, "0 or more, below episodes_per_state"),
        ("seat", 0, rows.num_seats, "0 or more, below the seats of its game"),
        ("normalized_reward", 0, np.nextafter(1, 2), "0 to 1"),
        (TRAINED, np.finfo(float).min, np.inf, "a finite number"),
        (TURN, 0, MAX_COUNT, f"0 to {MAX_COUNT - 1}"),
        (TEMPERATURE, 0, np.inf, "a finite number above 0"),
    ):
        values = getattr(rows, field)
        possible = (values >= least) & (values < below)  # NaN is neither
        if not possible.all():
            at = int(possible.argmin())
            raise _impossible(path, first + at, field, f"{values[at]}, expected {expected}")
    silent = np.flatnonzero(rows.streams.response_ids.lengths == 0)
    if len(silent):
        raise _impossible(path, first + int(silent[0]), "response_ids", "is empty")
    fault = first_fault(rows.streams, vocabulary)
    if fault:
        remedy = "give --model, the model that sampled these rows, or convert the episodes again"
        raise _impossible(path, first + fault.stream, fault.field, fault.what, remedy)


def _alike(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether two types are equal except for the width of their numbers, which differs between tools."""
    if pa.types.is_list(expected) and (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return _alike(found.value_type, expected.value_type)
    kinds = (pa.types.is_integer, pa.types.is_floating)
    return bool(found == expected or any(kind(found) and kind(expected) for kind in kinds))
