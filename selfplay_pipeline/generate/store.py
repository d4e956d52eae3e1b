"""The JSONL file of a run, which grows by one episode at a time and can be continued after any stop."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import check_same
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, locked, write_json
from selfplay_pipeline.core.links import open_itself
from selfplay_pipeline.core.small_files import check_regular, read_object
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.read_records import MAX_LINE, arguments_path, is_compressed, parse_episode, read_lines
from selfplay_pipeline.generate.records import EpisodeRecord

NOT_EPISODES = (
    "metrics.jsonl", "trained_rows.jsonl", "server_*_weights.jsonl", "weight_versions.jsonl", "*.people.jsonl",
)  # fmt: skip
"""Patterns of the names of JSONL files with other contents."""


def check_name(path: Path) -> None:
    """Raises UserError if a file of episodes would share the files beside it with others, or be taken for another."""
    if not path.is_dir() and (path.suffix != ".jsonl" or any(map(path.match, NOT_EPISODES))):
        raise UserError(f"{path}: give the file of episodes another name, which ends with .jsonl")


@dataclass
class EpisodeStore:
    """A file of episodes.

    Attributes:
        arguments: All settings that decide the episodes; a file made with other settings is rejected.
    """

    path: Path
    arguments: dict[str, Any]

    @property
    def arguments_path(self) -> Path:
        return arguments_path(self.path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the file of episodes and the files next to it.

        Raises:
            UserError: Another process holds the lock, or the file was made with other arguments.
        """
        with locked(self.path.with_name(self.path.name + ".lock"), str(self.path)):
            self.check()
            yield

    @contextmanager
    def opened(self, take: Callable[[EpisodeRecord], None]) -> Iterator[Callable[[EpisodeRecord], None]]:
        """Pass the stored episodes to `take`, and yield a function that appends an episode.

        An incomplete last line is removed after `take` has accepted all episodes.

        Args:
            take: Called with each stored episode; raises ValueError with the reason for rejecting one.

        Raises:
            UserError: A line is invalid; the file is unchanged.
            FileChangedError: Another program has changed the file.
        """
        if self.path.exists():
            self._read(take)
        repair(self.path)
        with appending(self.path) as append:
            if not self.arguments_path.exists():
                write_json(self.arguments_path, self.arguments)

            def store(record: EpisodeRecord) -> None:
                left = record.outcome.status == Status.ABANDONED  # by a person, and a signal is how
                append(record.model_dump_json().encode() + b"\n", even_stopped=left)

            yield store

    def _read(self, take: Callable[[EpisodeRecord], None]) -> None:
        lines: dict[tuple[int, int], int] = {}
        for number, line in read_lines(self.path):
            if not line.strip() or not line.endswith(b"\n"):
                continue
            try:
                record = parse_episode(line)
                first = lines.setdefault((record.group_index, record.episode), number)
                if first != number:
                    raise ValueError(f"episode {record.episode_id} is in line {first} too; remove one of the lines")
                take(record)
            except ValueError as error:
                raise UserError(f"{self.path}:{number}: {error}") from None

    def is_complete(self, places: Iterable[tuple[int, int]]) -> bool:
        """Whether the file holds exactly one episode at each of these places; it is not checked whether it is valid.

        Args:
            places: Numbers of state and episode, each pair once.
        """
        numbers: Counter[tuple[int, int]] = Counter()
        for _, line in read_lines(self.path) if self.path.exists() else ():
            try:
                episode = json.loads(line)
                numbers[episode["group_index"], episode["episode"]] += 1
            except (ValueError, KeyError, TypeError):
                continue  # such as an incomplete last line
        return numbers == Counter(places)

    def check(self) -> None:
        """Raises UserError if the name is unusable, or the file was made with other or unknown arguments."""
        check_name(self.path)
        if self.path.exists():
            check_regular(self.path, "give another --output")
            check_can_grow(self.path)
        if not self.arguments_path.exists():
            if self.path.exists() and self.path.stat().st_size:
                raise UserError(
                    f"{self.path} exists, but not {self.arguments_path.name}, which says how it was made; "
                    "give another --output"
                )
            return
        check_same(self.path, read_object(self.arguments_path, "selfplay generate"), self.arguments)


def check_can_grow(path: Path) -> None:
    """Raises UserError if a file is compressed, so that no line can be added."""
    if is_compressed(path):
        raise UserError(f"{path}: compressed with gzip, so that no line can be added; decompress it (`gunzip`)")


def repair(path: Path) -> int:
    """Remove an incomplete last line, left by a killed process, and return the number of bytes removed.

    Raises:
        UserError: The text after the last complete line is not the beginning of a JSON object, or the file is
            compressed; nothing was removed.
    """
    if not path.exists():
        return 0
    check_can_grow(path)
    with open_itself(path, "r+b") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - MAX_LINE))
        torn = file.read().rpartition(b"\n")[2]
        if torn:
            if torn[:1] != b"{" or min(torn) < ord(" "):  # JSON escapes control characters
                raise UserError(
                    f"{path}: its last line is not the beginning of a JSON object, so it is kept; remove that line, "
                    "or give another file"
                )
            file.truncate(size - len(torn))
    return len(torn)
