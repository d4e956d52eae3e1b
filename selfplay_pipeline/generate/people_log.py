"""Log of the people who play over the web: who they are, where they sit, and each turn as soon as it is taken.

The log is the file `NAME.people.jsonl` beside `NAME.jsonl`. It is only appended to. Turns of unfinished episodes are
taken again from it after a restart; for finished episodes it keeps who sat where, and the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, explain
from selfplay_pipeline.generate.records import PartnerUsage, read_lines
from selfplay_pipeline.generate.store import repair


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    at: float
    """Time in seconds since 1970."""


class PersonLine(_Line):
    """A person who has come."""

    kind: Literal["person"] = "person"
    person: str
    """Anonymous name of the person."""
    key_hash: str
    """SHA-256 of the key that the person's browser holds; the key itself is stored nowhere."""
    consent: str | None = None
    """SHA-256 of the text to which the person agreed before a study; None without a study."""


class BegunLine(_Line):
    """An episode that has begun."""

    kind: Literal["begun"] = "begun"
    episode_id: str
    group: int
    people: dict[int, str]
    """Person of each seat that a person holds."""
    place: int | None = None
    """Number of the episode in the person's list of a study, from 0; None without a study."""


class TurnLine(_Line):
    """A turn that was taken."""

    kind: Literal["turn"] = "turn"
    episode_id: str
    number: int
    """Number of the turn in its episode, from 0."""
    seat: int
    text: str
    cut: bool = False
    finish_reason: str
    seconds: float | None = None
    """Time between the moment at which a person could act and the person's turn; None for other players."""
    heard: dict[int, str] | None = None
    """Replacements of this message that other seats heard, by seat; None if they heard the message."""
    completion: dict[str, Any] | None = None
    """Completion of a checkpoint, whose tokens are never made of text again; None for other players."""
    usage: PartnerUsage | None = None
    """Usage of a chat model so far in the episode; None for other players."""


class LostLine(_Line):
    """An episode that was lost to the engine; its turns so far count for nothing."""

    kind: Literal["lost"] = "lost"
    episode_id: str


Line = PersonLine | BegunLine | TurnLine | LostLine
LINES: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])
WRITER = "`selfplay play --web` writes this file"


def log_path(output: Path) -> Path:
    """Returns the path of the log beside a file of episodes."""
    return output.with_suffix(".people.jsonl")


def read_log(path: Path) -> Iterator[Line]:
    """Yields the lines of a log, without an incomplete last one.

    Raises:
        UserError: A line is invalid.
    """
    if not path.exists():
        return
    for number, line in read_lines(path, WRITER):
        if not line.endswith(b"\n"):
            continue
        try:
            yield LINES.validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {explain(error)}; {WRITER}") from None


@contextmanager
def opened_log(path: Path) -> Iterator[Callable[[Line], None]]:
    """Yields a function that appends a line; an incomplete last line is removed first.

    Raises:
        UserError: The file cannot be written.
    """
    repair(path)
    with appending(path) as append:
        yield lambda line: append(line.model_dump_json(exclude_none=True).encode() + b"\n")
