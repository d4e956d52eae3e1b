"""The JSONL file of a run: appended episode by episode, and continued after any stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import check_same
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, locked, write_json
from selfplay_pipeline.core.links import open_itself
from selfplay_pipeline.core.small_files import read_object
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import EpisodeRecord, parse_episode, read_lines


@dataclass
class EpisodeStore:
    """Episodes on disk.

    Attributes:
        arguments: all that decides what is played; a file made with others is refused.
    """

    path: Path
    arguments: dict[str, Any]

    @property
    def arguments_path(self) -> Path:
        return self.path.with_suffix(".args.json")

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes away from the file and what is written beside it.

        Raises:
            UserError: another process holds it, or it was made with other arguments.
        """
        with locked(self.path.with_name(self.path.name + ".lock"), str(self.path)):
            self.check()
            yield

    @contextmanager
    def opened(self, take: Callable[[EpisodeRecord], None]) -> Iterator[Callable[[EpisodeRecord], None]]:
        """Hand the episodes that the file holds to `take`, and yield a function that appends one.

        Only once all of them were taken is a torn last line cut off.

        Args:
            take: raises a `ValueError` that says why an episode must not be there.

        Raises:
            UserError: a line is bad; the file is as it was.
            FileChangedError: the file is no longer what was written, because another program has changed it.
        """
        if self.path.exists():
            self._read(take)
        if not self.arguments_path.exists():
            write_json(self.arguments_path, self.arguments)
        repair(self.path)
        with appending(self.path) as append:
            yield lambda record: append(record.model_dump_json().encode() + b"\n")

    def _read(self, take: Callable[[EpisodeRecord], None]) -> None:
        lines: dict[tuple[int, int], int] = {}
        for number, line in read_lines(self.path):
            if not line.strip() or not line.endswith(b"\n"):
                continue
            try:
                record = parse_episode(line)
                if record.outcome.status == Status.ENGINE_FAILURE:
                    raise ValueError("field 'outcome.status': a lost episode is played again; remove this line")
                first = lines.setdefault((record.group_index, record.episode), number)
                if first != number:
                    raise ValueError(f"episode {record.episode_id} is in line {first} too; remove one of the lines")
                take(record)
            except ValueError as error:
                raise UserError(f"{self.path}:{number}: {error}") from None

    def check(self) -> None:
        """Whether the file was made with these arguments, if it is there; writes nothing.

        Raises:
            UserError: it was made with others, or nobody knows how.
        """
        if not self.arguments_path.exists():
            if self.path.exists() and self.path.stat().st_size:
                raise UserError(
                    f"{self.path} exists, but not {self.arguments_path.name}, which says how it was made; "
                    "give another --output"
                )
            return
        check_same(self.path, read_object(self.arguments_path, "selfplay generate"), self.arguments)


def repair(path: Path) -> int:
    """Cut a torn last line, left by a process that was killed while it wrote. Returns the bytes cut.

    Raises:
        UserError: what follows the last whole line is not the beginning of a JSON object; nothing was cut.
    """
    if not path.exists():
        return 0
    with open_itself(path, "r+b") as file:
        size = file.seek(0, 2)
        keep = size
        while keep > 0:
            step = min(keep, 1 << 16)
            file.seek(keep - step)
            newline = file.read(step).rfind(b"\n")
            if newline >= 0:
                keep = keep - step + newline + 1
                break
            keep -= step
        if keep < size:
            file.seek(keep)
            torn = file.read(size - keep)
            if torn[:1] != b"{" or min(torn) < ord(" "):  # JSON escapes control characters
                raise UserError(
                    f"{path}: its last line is not the beginning of a JSON object, so it is kept; remove that line, "
                    "or give another file"
                )
            file.truncate(keep)
    return size - keep
