"""One fault as a case, and the verdict on its observations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from chaos.outside import Ended

Outcome = Literal["handled", "traceback", "hung", "lost", "left", "unexpected"]
"""Outcome of a case; only `handled` is good.

`lost`: after the same command was given again, an episode was missing or duplicated. `left`: a process, a file or a
socket was left behind. `unexpected`: another exit code than expected, or no message of one line.
"""


@dataclass(frozen=True)
class Verdict:
    """Outcome of a case, with the command's message, or the things that were lost or left, in one line."""

    outcome: Outcome
    detail: str


@dataclass(frozen=True)
class Case:
    """A fault to try.

    Attributes:
        kind: Its row in the table.
        name: Its unique name; `make chaos ARGS="--case NAME"` runs it again.
        run: Function that tries it in an empty folder of its own.
    """

    kind: str
    name: str
    run: Callable[[Path], Verdict]


def judge(
    first: Ended,
    again: Ended,
    codes: Collection[int],
    lost: Sequence[str] = (),
    left: Sequence[str] = (),
    *,
    silent: bool = False,
) -> Verdict:
    """Returns the verdict; the worst observation decides.

    Args:
        first: The command with the fault.
        again: The same command without the fault.
        codes: Allowed exit codes of the first command.
        lost: Differences to an undisturbed run after both commands, and other problems, one line each.
        left: Leftovers, one line each.
        silent: Whether the first command's message could not be read, or it was killed.
    """
    for which, ended in (("the command", first), ("the same command again", again)):
        if ended.code is None:
            return Verdict("hung", f"{which} had not ended after {ended.seconds:.0f} s")
        if ended.traceback:
            return Verdict("traceback", f"{which}: {ended.last_line}")
    if again.code != 0:
        return Verdict("lost", f"the same command again ended with {again.code}: {again.last_line}")
    if lost:
        return Verdict("lost", "; ".join(lost))
    if left:
        return Verdict("left", "; ".join(left))
    code, message = first.code, first.message
    if code not in codes:
        return Verdict("unexpected", f"exit code {code}, expected {sorted(codes)}: {first.last_line}")
    if silent or code is None or code <= 0:
        return Verdict("handled", f"exit code {code}")
    if len(message.splitlines()) != 1:
        return Verdict("unexpected", f"exit code {code} with a message of {len(message.splitlines())} lines")
    return Verdict("handled", message)
