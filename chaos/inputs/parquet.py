"""Bad parquet files: damaged, with other columns, with damaged metadata, or with impossible rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from chaos.inputs.base import Input, Prepare
from chaos.inputs.damage import WHOLE_FILES, as_text, changed, without
from chaos.inputs.good import Good, copy, copy_folder

KIND = "parquet files"
ROWS = "impossible rows"
FILE = "bad.parquet"
READERS = {"train": ("train", FILE, "--output", "out"), "check": ("convert", "--check", FILE)}
COLUMNS = (
    "data_source", "prompt", "messages", "agent_name", "reward_model", "extra_info", "prompt_ids", "response_ids",
    "response_mask", "response_logprobs", "sampling_temperature",
)  # fmt: skip
READ_TO_TRAIN = {
    "prompt", "reward_model", "extra_info", "prompt_ids", "response_ids", "response_mask", "response_logprobs",
    "sampling_temperature",
}  # fmt: skip
"""Columns that training needs."""
ROW = 5
"""Number of the damaged row, from 0."""


def table_changed(change: Callable[[Any], Any]) -> Prepare:
    """Returns a function that writes good rows after a change of pyarrow's table."""

    def prepare(folder: Path, good: Good) -> None:
        import pyarrow.parquet as pq

        pq.write_table(change(pq.read_table(good.parquet)), folder / FILE)

    return prepare


def row_changed(change: Callable[[dict[str, Any]], dict[str, Any]], at: int = ROW) -> Prepare:
    """Returns a function that writes good rows with one of them changed."""

    def edit(table: Any) -> Any:
        import pyarrow as pa

        rows = table.to_pylist()
        rows[at] = change(rows[at])
        return pa.Table.from_pylist(rows, schema=table.schema)

    return table_changed(edit)


def inputs(rng: Random) -> Iterator[Input]:
    """Yields files, columns, metadata and rows; each is read by training or by the check."""
    yield from _files(rng)
    yield from _columns(rng)
    yield from _metadata()
    yield from _rows(rng)
    yield from _states()


def _files(rng: Random) -> Iterator[Input]:
    whole = WHOLE_FILES | {
        "text": as_text("data\n"),
        "its two ends alone": as_text("PAR1PAR1"),
        "JSON": as_text("{}\n"),
    }
    for name, damage in whole.items():

        def prepare(folder: Path, good: Good, damage: Callable[[Path], None] = damage) -> None:
            copy(good.parquet, folder / FILE)
            damage(folder / FILE)

        for reader, command in rng.sample(sorted(READERS.items()), 1):
            yield Input(KIND, f"{reader}, the file is {name}", command, r"bad\.parquet", prepare)

    def flipped(folder: Path, good: Good) -> None:
        data = bytearray(good.parquet.read_bytes())
        for at in range(8, len(data) - 2000, 97):
            data[at] ^= 0x55
        (folder / FILE).write_bytes(data)

    for reader, command in READERS.items():
        yield Input(KIND, f"{reader}, bits of its pages are flipped", command, r"bad\.parquet", flipped)
        yield Input(
            KIND, f"{reader}, no rows", command, r"bad\.parquet", table_changed(lambda table: table.slice(0, 0))
        )
        yield Input(
            KIND, f"{reader}, other columns", command, r"bad\.parquet",
            table_changed(lambda table: table.select(["data_source"]).rename_columns(["text"])),
        )  # fmt: skip


def _columns(rng: Random) -> Iterator[Input]:
    def missing(column: str) -> Callable[[Any], Any]:
        return lambda table: table.drop_columns([column])

    def of_text(column: str) -> Callable[[Any], Any]:
        def change(table: Any) -> Any:
            import pyarrow as pa

            at = table.schema.get_field_index(column)
            return table.set_column(at, column, pa.array(["text"] * table.num_rows))

        return change

    def empty(column: str) -> Callable[[Any], Any]:
        def change(table: Any) -> Any:
            import pyarrow as pa

            at = table.schema.get_field_index(column)
            return table.set_column(at, column, pa.nulls(table.num_rows, table.schema.field(column).type))

        return change

    for column in COLUMNS:
        readers = [name for name in READERS if name == "check" or column in READ_TO_TRAIN]
        kinds = {"missing": missing(column), "of text": of_text(column), "empty": empty(column)}
        for kind in ("missing",) if column in ("data_source", "agent_name") else kinds:
            reader, change = rng.choice(readers), kinds[kind]
            yield Input(
                KIND, f"{reader}, column {column} {kind}", READERS[reader], r"bad\.parquet", table_changed(change)
            )  # fmt: skip


def _metadata() -> Iterator[Input]:
    def noted(value: bytes | None) -> Prepare:
        return table_changed(
            lambda table: table.replace_schema_metadata(None if value is None else {b"selfplay": value})
        )

    facts = {"schema_version": 2, "temperature": 0.8, "episodes_per_state": 2}
    values: dict[str, bytes | None] = {
        "missing": None,
        "empty": b"",
        "no JSON": b"{schema_version: 2",
        "binary": b"\xff\xfe\x00",
        "a list": b"[1, 2]",
        "a number": b"7",
        "of the future": json.dumps(facts | {"schema_version": 99}).encode(),
        "with top_p": json.dumps(facts | {"top_p": 0.5}).encode(),
        "with a hostile top_p": json.dumps(facts | {"top_p": "\x1b[31m"}).encode(),
        "naming no model": json.dumps(facts | {"checkpoint": 7, "weights": []}).encode(),
        "naming a hostile model": json.dumps(facts | {"checkpoint": "/\x1b[31m", "weights": "w"}).encode(),
    }
    for name, value in values.items():
        reader = "check" if name == "missing" else "train"
        yield Input(KIND, f"{reader}, metadata {name}", READERS[reader], r"bad\.parquet", noted(value))


def _rows(rng: Random) -> Iterator[Input]:
    nan, inf = float("nan"), float("inf")
    Row = dict[str, Any]

    def first(field: str, value: Any) -> Callable[[Row], Row]:
        return lambda row: changed(row, (field, 0), value)

    def field(path: tuple[Any, ...], value: Any) -> Callable[[Row], Row]:
        return lambda row: changed(row, path, value)

    kinds: dict[str, Callable[[Row], Row]] = {
        "log-prob not a number": first("response_logprobs", nan),
        "log-prob minus infinite": first("response_logprobs", -inf),
        "log-prob of a token without probability": first("response_logprobs", -1e30),
        "log-prob positive": first("response_logprobs", 0.5),
        "log-probs shorter than the tokens": lambda row: {**row, "response_logprobs": row["response_logprobs"][:-1]},
        "log-prob nothing": first("response_logprobs", None),
        "prompt id negative": first("prompt_ids", -1),
        "prompt id beyond the vocabulary": first("prompt_ids", 999_999),
        "sampled id negative": first("response_ids", -1),
        "sampled id beyond the vocabulary": first("response_ids", 999_999),
        "sampled id nothing": first("response_ids", None),
        "empty prompt": field(("prompt_ids",), []),
        "no tokens": lambda row: {**row, "response_ids": [], "response_mask": [], "response_logprobs": []},
        "mask without a token of one's own": lambda row: {**row, "response_mask": [0] * len(row["response_mask"])},
        "mask of 2": first("response_mask", 2),
        "mask longer than the tokens": lambda row: {**row, "response_mask": [*row["response_mask"], 1]},
        "reward not a number": field(("reward_model", "normalized_reward"), nan),
        "reward infinite": field(("reward_model", "normalized_reward"), inf),
        "reward above 1": field(("reward_model", "normalized_reward"), 7.0),
        "reward nothing": field(("reward_model", "normalized_reward"), None),
        "temperature not a number": field(("sampling_temperature",), nan),
        "temperature infinite": field(("sampling_temperature",), inf),
        "temperature negative": field(("sampling_temperature",), -1.0),
        "temperature of another": field(("sampling_temperature",), 0.123),
        "seat of a third": field(("extra_info", "seat"), 2),
        "group negative": field(("extra_info", "index"), -1),
        "group nothing": field(("extra_info", "index"), None),
        "play negative": field(("extra_info", "episode"), -1),
    }
    for name, change in kinds.items():
        for reader, command in READERS.items():
            yield Input(ROWS, f"{reader}, {name}", command, r"bad\.parquet", row_changed(change))

    def doubled(table: Any) -> Any:
        import pyarrow as pa

        return pa.concat_tables([table, table.slice(ROW, 1)])

    def torn(table: Any) -> Any:
        return table.slice(1)

    def rewards_differ(row: Row) -> Row:
        found: Row = changed(row, ("reward_model", "normalized_reward"), 0.25)
        return found

    for reader, command in READERS.items():
        yield Input(ROWS, f"{reader}, a row twice", command, r"bad\.parquet", table_changed(doubled))
        yield Input(ROWS, f"{reader}, a row missing", command, r"bad\.parquet", table_changed(torn))
        yield Input(
            ROWS,
            f"{reader}, seats of one episode differ in reward",
            command,
            r"bad\.parquet",
            row_changed(rewards_differ),
        )


def _states() -> Iterator[Input]:
    """Yields damaged game states for online training."""

    def of_states(change: Callable[[Any], Any], name: str) -> Prepare:
        def prepare(folder: Path, good: Good) -> None:
            import pyarrow.parquet as pq

            copy_folder(good.online_games, folder / "states")
            path = folder / "states" / f"{name}.parquet"
            pq.write_table(change(pq.read_table(path)), path)

        return prepare

    def edited(path: tuple[Any, ...], value: Any) -> Callable[[Any], Any]:
        def change(table: Any) -> Any:
            import pyarrow as pa

            rows = table.to_pylist()
            rows[0] = without(rows[0], path) if value is KeyError else changed(rows[0], path, value)
            return pa.Table.from_pylist(rows, schema=table.schema)

        return change

    changes: dict[str, Callable[[Any], Any]] = {
        "no rows": lambda table: table.slice(0, 0),
        "other columns": lambda table: table.select(["data_source"]),
        "rules that are no JSON": edited(("extra_info", "rules"), "{"),
        "rules that are a list": edited(("extra_info", "rules"), "[1]"),
        "rules that are nothing": edited(("extra_info", "rules"), None),
        "rules of another game": edited(("extra_info", "rules"), '{"size": 8}'),
        "nothing about the row": edited(("extra_info",), None),
        "a state that is no JSON": edited(("game_state",), "{"),
        "a state that is nothing": edited(("game_state",), None),
        "a state without a table": edited(("game_state",), "{}"),
        "perspectives of nobody": edited(("extra_info", "perspectives"), "none"),
        "a seat of a third": edited(("seat",), 7),
    }
    command = ("train-online", "states", "--output", "out")
    for number, (name, change) in enumerate(changes.items()):
        file = ("train", "test")[number % 2]
        yield Input(KIND, f"online {file}, {name}", command, rf"states(/{file}\.parquet)?", of_states(change, file))
    for name, damage in WHOLE_FILES.items():

        def prepare(folder: Path, good: Good, damage: Callable[[Path], None] = damage) -> None:
            copy_folder(good.online_games, folder / "states")
            damage(folder / "states" / "train.parquet")

        yield Input(KIND, f"online, the file is {name}", command, r"states(/train\.parquet)?", prepare)
