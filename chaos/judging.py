"""Turns the observations of a fault into its verdict."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from chaos.cases import Verdict
from chaos.outside import Ended


@dataclass(frozen=True)
class Seen:
    """Observations of one fault.

    Attributes:
        first: The command with the fault.
        again: The same command without the fault.
        codes: Allowed exit codes of the first command.
        lost: Differences to an undisturbed run after both commands, and other problems, one line each.
        left: Leftovers, one line each.
        names: Words that the first command's message must contain, such as a server's address.
        silent: Whether the first command's message could not be read, or it was killed.
        quotes: Whether its message may quote the end of a log, in further lines.
    """

    first: Ended
    again: Ended
    codes: Collection[int]
    lost: Sequence[str] = ()
    left: Sequence[str] = ()
    names: Sequence[str] = field(default=())
    silent: bool = False
    quotes: bool = False


def judge(seen: Seen) -> Verdict:
    """Returns the verdict; the worst observation decides."""
    for which, ended in (("the command", seen.first), ("the same command again", seen.again)):
        if ended.code is None:
            return Verdict("hung", f"{which} had not ended after {ended.seconds:.0f} s")
        if ended.traceback(quotes=seen.quotes):
            return Verdict("traceback", f"{which}: {_last_line(ended.err)}")
    if seen.again.code != 0:
        said = seen.again.message or _last_line(seen.again.err)
        return Verdict("lost", f"the same command again ended with {seen.again.code}: {said}")
    if seen.lost:
        return Verdict("lost", "; ".join(seen.lost))
    if seen.left:
        return Verdict("left", "; ".join(seen.left))
    return _judge_words(seen)


def _judge_words(seen: Seen) -> Verdict:
    code, message = seen.first.code, seen.first.message
    if code not in seen.codes:
        expected = " or ".join(map(str, sorted(seen.codes)))
        detail = f"exit code {code}, expected {expected}: {message or _last_line(seen.first.err)}"
        return Verdict("accepted" if code == 0 else "obscure", detail)
    if seen.silent or code is None or code <= 0:
        return Verdict("handled", f"exit code {code}")
    lines = message.splitlines()
    if not lines:
        return Verdict("obscure", f"exit code {code} without a message")
    if len(lines) > 1 and not seen.quotes:
        return Verdict("obscure", f"a message of {len(lines)} lines: {lines[0]}")
    absent = [name for name in seen.names if name not in message]
    if absent:
        return Verdict("obscure", f"the message does not name {', '.join(absent)}: {lines[0]}")
    return Verdict("handled", lines[0])


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "nothing was said")
