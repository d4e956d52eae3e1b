"""Compares the files of a command with an undisturbed run: every episode once, every file complete."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Print = Mapping[str, Counter[str]]
"""Counted contents of each file, by its name below the folder: episodes of games, rows of parquet."""


def fingerprint(folder: Path, *, contents: bool = True) -> Print:
    """Returns the contents of a folder, without logs, which include the output that cases store there.

    Args:
        contents: Whether to compare the text of the episodes; else only their ids, for policies that sample.
    """
    found: dict[str, Counter[str]] = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.suffix != ".log":
            found[str(path.relative_to(folder))] = _things_in(path, contents)
    return found


def _things_in(path: Path, contents: bool) -> Counter[str]:
    if path.suffix == ".jsonl":
        return Counter(_episode(line, contents) for line in path.read_bytes().splitlines(keepends=True))
    if path.suffix == ".parquet":
        try:
            return Counter({f"{_rows(path)}": 1})
        except (OSError, pa.ArrowException) as error:
            return Counter({f"unreadable: {str(error).splitlines()[0]}": 1})
    return Counter()


def _episode(line: bytes, contents: bool) -> str:
    """Returns an episode's id, and a digest of its content."""
    try:
        episode = json.loads(line, parse_constant=_refuse)
    except ValueError:
        return f"unreadable: {line[:40]!r}"
    if not line.endswith(b"\n") or not isinstance(episode, dict) or "episode_id" not in episode:
        return f"unreadable: {line[:40]!r}"
    if episode["outcome"]["status"] == "engine_failure":
        return f"{episode['episode_id']} lost to an engine failure"
    return (
        f"{episode['episode_id']} {hashlib.sha256(line).hexdigest()[:12]}" if contents else str(episode["episode_id"])
    )


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _rows(path: Path) -> str:
    table = pq.read_table(path)
    digest = hashlib.sha256("".join(json.dumps(row, sort_keys=True) for row in table.to_pylist()).encode())
    return f"{table.num_rows} rows {digest.hexdigest()[:12]}"


def differences(undisturbed: Print, found: Print) -> list[str]:
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
