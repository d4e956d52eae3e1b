"""One bad input or one fault: the attempt, and its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["handled", "traceback", "hung", "accepted", "obscure", "lost", "left"]
"""Outcome of a case; only `handled` is good.

`obscure`: the input was refused, but the message does not say what is wrong, where and what to do. `accepted`: a bad
input ended with exit code 0. `lost`: after the same command was given again, an episode was missing or duplicated.
`left`: a process, a file or a socket was left behind.
"""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a case, with details."""

    outcome: Outcome
    detail: str
    """The command's message, or the things that were lost or left, in one line."""


@dataclass(frozen=True)
class Case:
    """A bad input or a fault to try.

    Attributes:
        kind: Its row in the table.
        name: Its unique name; `make chaos ARGS="--case NAME"` runs it again.
        run: Function that tries it in an empty folder of its own.
    """

    kind: str
    name: str
    run: Callable[[Path], Verdict]
