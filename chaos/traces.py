"""Compares the files of a command with an undisturbed run: every episode once, every file complete."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from selfplay_pipeline.core.small_files import parse_json

Contents = Mapping[str, Counter[str]]
"""Counted contents of each file, by its name below the folder: episodes of games, rows of parquet."""


def contents_of(folder: Path, *, texts: bool = True) -> Contents:
    """Returns the contents of a folder, without logs.

    Args:
        folder: The folder.
        texts: Whether to compare the text of the episodes; else only their ids, for policies that sample.
    """
    found: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.suffix != ".log":
            found[str(path.relative_to(folder))] = _things_in(path, texts)
    return found


def _things_in(path: Path, texts: bool) -> Counter[str]:
    if path.suffix == ".jsonl":
        return Counter(_episode(line, texts) for line in path.read_bytes().splitlines(keepends=True))
    if path.suffix == ".parquet":
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            return Counter({f"unreadable: {str(error).splitlines()[0]}": 1})
        return Counter({f"{table.num_rows} rows {_digest(json.dumps(table.to_pylist()).encode())}": 1})
    return Counter()


def _episode(line: bytes, texts: bool) -> str:
    """Returns an episode's id, and a digest of its content."""
    try:
        episode = parse_json(line)
        name = str(episode["episode_id"])
        if episode["outcome"]["status"] == "engine_failure":
            return f"{name} lost to an engine failure"
    except (ValueError, KeyError, TypeError):
        return f"unreadable: {line[:40]!r}"
    if not line.endswith(b"\n"):
        return f"unreadable: {line[:40]!r}"
    return f"{name} {_digest(line)}" if texts else name


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def differences(undisturbed: Contents, found: Contents) -> list[str]:
    """Returns the differences to an undisturbed run, a line for each file."""
    lines = []
    for name in sorted({*undisturbed, *found}):
        if name not in found:
            lines.append(f"{name} is missing")
        elif name not in undisturbed:
            lines.append(f"{name} was left")
        elif undisturbed[name] != found[name]:
            lines.append(f"{name}: {_difference(undisturbed[name], found[name])}")
    return lines


def _difference(expected: Counter[str], found: Counter[str]) -> str:
    missing, more = expected - found, found - expected
    twice = sum(count for thing, count in more.items() if thing in expected)
    parts = [(missing.total(), "missing"), (twice, "twice"), (more.total() - twice, "other than undisturbed")]
    example = next((thing for thing in more if thing not in expected), next(iter(missing or more)))
    return f"{', '.join(f'{count} {what}' for count, what in parts if count)} (such as {example})"
