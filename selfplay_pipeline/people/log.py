"""Log of the people who play over the web: who they are, where they sit, and each turn as soon as it is taken.

The log is the file `NAME.people.jsonl` beside `NAME.jsonl`. It is only appended to. Turns of unfinished episodes are
taken again from it after a restart; for finished episodes it keeps who sat where, and the times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, explain
from selfplay_pipeline.generate.read_records import read_lines
from selfplay_pipeline.generate.records import PartnerUsage
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


def read_log(path: Path, check: Callable[[Line], str] = lambda line: "") -> Iterator[Line]:
    """Yields the lines of a log, without an incomplete last one.

    Args:
        path: The log.
        check: Returns what is wrong with a line in this run; "" if it fits.

    Raises:
        UserError: A line is invalid, or contradicts the lines before it.
    """
    if not path.exists():
        return
    before = _Before()
    for number, line in read_lines(path, WRITER):
        if not line.endswith(b"\n"):
            continue
        try:
            found = LINES.validate_json(line)
        except ValidationError as error:
            raise UserError(f"{path}:{number}: {explain(error)}; {WRITER}") from None
        wrong = before.contradicts(found) or check(found)
        if wrong:
            raise UserError(f"{path}:{number}: {wrong}; {WRITER}: put back the line as it was, or use another --output")
        yield found


@dataclass
class _Before:
    """Lines of a log so far.

    Attributes:
        people: All people.
        keys: Hashes of their keys.
        turns: Number of turns of each episode that has begun.
    """

    people: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    turns: dict[str, int] = field(default_factory=dict)

    def contradicts(self, line: Line) -> str:
        """Returns why a line cannot follow the lines before it, or "" after adding it to them."""
        if isinstance(line, PersonLine):
            expected = f"p{len(self.people) + 1}"
            if line.person != expected or line.key_hash in self.keys:
                return f"field 'person': {line.person!r:.60}, but the next new person is {expected}"
            self.people.add(line.person)
            self.keys.add(line.key_hash)
        elif isinstance(line, BegunLine):
            if strange := {*line.people.values()} - self.people:
                return f"field 'people': no line before this one has the person {min(strange)!r:.60}"
            if len({*line.people.values()}) < len(line.people):
                return "field 'people': one person holds several seats"
            if line.episode_id in self.turns:
                return f"the episode {line.episode_id:.60} has begun before"
            self.turns[line.episode_id] = 0
        else:
            if line.episode_id not in self.turns:
                return f"field 'episode_id': no line before this one begins the episode {line.episode_id:.60}"
            if isinstance(line, LostLine):
                del self.turns[line.episode_id]
            elif line.number != self.turns[line.episode_id]:
                return f"field 'number': {line.number}, but the next turn is {self.turns[line.episode_id]}"
            else:
                self.turns[line.episode_id] += 1
        return ""


@contextmanager
def opened_log(path: Path) -> Iterator[Callable[[Line], None]]:
    """Yields a function that appends a line; an incomplete last line is removed first.

    Raises:
        UserError: The file cannot be written.
    """
    repair(path)
    with appending(path) as append:
        yield lambda line: append(line.model_dump_json(exclude_none=True).encode() + b"\n")
