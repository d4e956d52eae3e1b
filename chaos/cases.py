"""One bad input or one fault: what is tried, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["handled", "traceback", "hung", "accepted", "obscure", "lost", "left"]
"""`handled` is the only good one. `obscure`: refused, but the message does not say what is wrong, where and what to do.
`accepted`: a bad input ended with exit code 0. `lost`: after the same command was given again, an episode was missing
or there twice. `left`: a process, a file or a socket was left behind."""


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    outcome: Outcome
    detail: str
    """The command's message, or what was lost or left, in one line."""


@dataclass(frozen=True)
class Case:
    """Something that goes wrong.

    Attributes:
        kind: its row in the table.
        name: unique; `make chaos ARGS="--case NAME"` runs it again.
        run: tries it in an empty folder of its own.
    """

    kind: str
    name: str
    run: Callable[[Path], Verdict]
