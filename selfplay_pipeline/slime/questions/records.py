"""One episode of the policy with a partner as one JSON line: counts of questions and facts, and the reward."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, explain, write_text
from selfplay_pipeline.generate.read_records import read_lines
from selfplay_pipeline.generate.records import Count
from selfplay_pipeline.generate.store import repair
from selfplay_pipeline.metrics.figures import figures_of

FILE_NAME = "questions.jsonl"
"""Name of the file of records in a log directory."""
NAMES = (
    "reward", "questions", "facts", "asking", "specific", "repeated", "learned", "messages", "length", "leaks",
)  # fmt: skip
"""Figures that can be computed from an `AskingRecord`, in display order."""
FIGURES = {name: figures_of()[name] for name in NAMES}


class AskingRecord(BaseModel):
    """Counts of one episode, from the policy's seat.

    The fields from `messages` on are those of `games.base.Asking`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    step: Count
    """Training step: number of earlier updates of the policy, or number of the iteration that played."""
    episode_id: str
    group: int = Field(ge=0, lt=2**63)
    """Number of the game state; the episodes of one state are one group."""
    reward: float = Field(ge=0, le=1, allow_inf_nan=False)
    """Normalised reward; 0 unless agreed."""
    status: str
    """End of the episode: a `games.base.Status`, or one of the game's goals."""
    turns: Count
    """Turns of all seats."""
    people_played: bool | None = None
    """Whether human episodes exist for the same configuration; None in records that are derived from stored episodes.
    """
    messages: Count
    """Messages of the policy."""
    questions: Count
    """Messages that ask."""
    specific: Count
    """Questions for a fact of the state."""
    facts: Count
    """Different facts asked for."""
    repeated: Count
    """Specific questions that ask only for facts already asked for."""
    learned: Count
    """Facts hidden from the policy that the partner told after being asked."""
    partner_messages: Count
    leaks: Count
    """Messages of the partner that told a fact without a question for it."""

    @property
    def asked(self) -> AskingRecord:
        """The record itself; it has the fields of `Asking` that formulas read."""
        return self

    @property
    def length(self) -> int:
        """Number of turns, under the name that the figures' formulas read."""
        return self.turns

    @model_validator(mode="after")
    def _parts_of_a_whole(self) -> AskingRecord:
        for part, whole in (
            ("questions", "messages"),
            ("specific", "questions"),
            ("repeated", "specific"),
            ("leaks", "partner_messages"),
        ):
            if getattr(self, part) > getattr(self, whole):
                raise ValueError(f"'{part}' is {getattr(self, part)}, above '{whole}' {getattr(self, whole)}")
        return self


def parts_of(records: Sequence[AskingRecord], name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns a figure's numerator and denominator in each episode, shapes (episodes,)."""
    above, below = np.array([FIGURES[name].parts(record) for record in records], np.float64).reshape(-1, 2).T
    return above, below


def log_step(log_dir: Path, step: int, records: Iterable[AskingRecord]) -> None:
    """Add a step's episodes in one write, after removing a line that a kill left incomplete.

    The new lines replace the lines of this or later steps, which an earlier process wrote.

    Raises:
        UserError: A line of the file is bad.
    """
    log_dir.mkdir(parents=True, exist_ok=True)
    path = log_dir / FILE_NAME
    with FileLock(path.with_name(path.name + ".lock")):
        if _last_step(path) < step:
            repair(path)
            with appending(path) as append:
                append(_lines(records).encode())
        else:
            kept = [record for record in read_records(path) if record.step < step]
            write_text(path, _lines([*kept, *records]))


def log_in(log_dir: Path) -> Path | None:
    """Returns the file of episodes in a log directory; None if it does not exist."""
    path = log_dir / FILE_NAME
    return path if path.exists() else None


def _lines(records: Iterable[AskingRecord]) -> str:
    return "".join(record.model_dump_json() + "\n" for record in records)


def _last_step(path: Path) -> int:
    """Returns the step of the last complete line, -1 without one; reads only the end of the file."""
    if not path.exists():
        return -1
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError, KeyError, TypeError):
                return int(json.loads(line)["step"])
    return -1


def read_records(path: Path) -> Iterator[AskingRecord]:
    """Yields the records in a log of episodes; an incomplete last line is left out.

    Such a line is still being written, or was left by a kill.

    Raises:
        UserError: The file is missing, or a line is bad; the message names file, line and field.
    """
    for number, line in read_lines(path, "the log hook of slime writes this file"):
        if not line.strip():
            continue
        try:
            yield AskingRecord.model_validate_json(line)
        except ValidationError as error:
            if line.endswith(b"\n"):
                raise UserError(f"{path}:{number}: {explain(error)}; the log hook of slime writes this file") from None
