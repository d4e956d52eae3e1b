"""The JSONL file of a run: appended play by play, and continued after any stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.files import appending, locked, write_json
from selfplay_pipeline.folders import differences
from selfplay_pipeline.games.types import Status
from selfplay_pipeline.generate.records import PlayRecord, read_games
from selfplay_pipeline.small_files import read_object


@dataclass
class GameStore:
    """Plays on disk. `arguments` decide what is played; a file made with others is refused."""

    path: Path
    arguments: dict[str, Any]

    @property
    def arguments_path(self) -> Path:
        return self.path.with_suffix(".args.json")

    @contextmanager
    def opened(self) -> Iterator[tuple[Iterator[PlayRecord], Any]]:
        """Lock, check and repair the file; yield the plays that it holds and a function that appends one.

        Raises:
            UserError: another process writes it, it was made with other arguments, or a line is bad.
        """
        with locked(self.path.with_name(self.path.name + ".lock"), str(self.path)):
            self.check()
            if not self.arguments_path.exists():
                write_json(self.arguments_path, self.arguments)
            repair(self.path)
            drop_lost(self.path)
            existing = read_games(self.path) if self.path.exists() else iter(())
            with appending(self.path) as append_bytes:

                def append(record: PlayRecord) -> None:
                    append_bytes(record.model_dump_json().encode() + b"\n")

                yield existing, append

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
        before = read_object(self.arguments_path, "selfplay generate")
        differ = [key for key in sorted({*before, *self.arguments}) if before.get(key) != self.arguments.get(key)]
        if differ:
            listed = differences(before, self.arguments, differ)
            raise UserError(
                f"{self.path} was made with other arguments: {listed}; give another --output or the same arguments"
            )


def drop_lost(path: Path) -> int:
    """Remove the plays that the engine failed, which earlier versions wrote too, so that they are played again.

    Returns how many there were.
    """
    if not path.exists():
        return 0
    with path.open("rb") as file:
        lost = {number for number, line in enumerate(file) if _is_lost(line)}
    if lost:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with path.open("rb") as file, temporary.open("wb") as kept:
            kept.writelines(line for number, line in enumerate(file) if number not in lost)
        temporary.replace(path)
    return len(lost)


def _is_lost(line: bytes) -> bool:
    if Status.ENGINE_FAILURE.value.encode() not in line:
        return False
    try:
        return PlayRecord.model_validate_json(line).outcome.status is Status.ENGINE_FAILURE
    except ValidationError:
        return False  # whoever reads the games says what is wrong with it


def repair(path: Path) -> int:
    """Cut a torn last line, left by a process that was killed while it wrote. Returns the bytes cut."""
    if not path.exists():
        return 0
    with path.open("r+b") as file:
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
        file.truncate(keep)
    return size - keep
