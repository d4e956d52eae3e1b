"""Judges the outcome of a bad input from outside: exit code, output, and files."""

from __future__ import annotations

import hashlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from chaos.cases import Verdict
from chaos.command import Ended

ANNOUNCED = re.compile(
    r"configuration: |starting the |playing |training |sampling |reading |writing |analysing |iteration \d|"
    r"looking for |Usage: |Try '|selfplay: warning: |Loading weights|Generating \w+ split|Filtering prompts|\s*$"
)
"""Lines that may precede the error line: announcements, click's usage, and progress of libraries."""
ERROR = re.compile(r"(selfplay|Error): ")
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal."""
LONGEST = 2000
"""Largest number of characters of an error line that people still read."""

Listing = dict[str, tuple[int, bytes]]


@dataclass(frozen=True)
class Expected:
    """The expected refusal of a bad input.

    Attributes:
        says: Regular expression for the name of the file, the option or the key in the error line.
        codes: Allowed exit codes; 1 is for errors that are not the user's mistake.
        printed: Whether the finding is a line on stdout instead of an error, as in `slime check`.
    """

    says: str
    codes: tuple[int, ...] = (2,)
    printed: bool = False


def listing(folder: Path) -> Listing:
    """Returns kind and content of all files below a folder, without locks, which stay for later commands."""
    found = {}
    for path in folder.rglob("*"):
        if path.suffix != ".lock" and path.name != ".lock" and "__pycache__" not in path.parts:
            mode = path.lstat().st_mode
            content = hashlib.sha256(path.read_bytes()).digest() if stat.S_ISREG(mode) else b""
            found[str(path.relative_to(folder))] = (mode, content)
    return found


def judge(ended: Ended, expected: Expected, before: Listing, after: Listing) -> Verdict:
    """Returns the verdict, the worst that applies; `handled` if there is no fault."""
    everything = ended.stdout + ended.stderr
    last = next((line for line in reversed(everything.splitlines()) if line.strip()), "(nothing printed)")
    if "Traceback (most recent call last)" in everything:
        return Verdict("traceback", one_line(last))
    if ended.stopped_for:
        return Verdict("hung", ended.stopped_for)
    if ended.began:
        return Verdict("accepted", one_line(f"it started {ended.began}"))
    if ended.code is not None and ended.code < 0:
        return Verdict("traceback", f"killed by signal {-ended.code}; {one_line(last)}")
    if ended.code == 0:
        return Verdict("accepted", f"exit code 0: {one_line(last)}")
    if expected.printed and not _error_lines(ended, expected):
        return Verdict("accepted", one_line(f"nothing of it in what was printed: {last}"))
    problem = _obscurity(ended, expected)
    if problem:
        return Verdict("obscure", problem)
    changed = [
        f"{word} {name}"
        for word, names in (
            ("left", after.keys() - before.keys()),
            ("removed", before.keys() - after.keys()),
            ("changed", {name for name in before.keys() & after.keys() if before[name] != after[name]}),
        )
        for name in sorted(names)
    ]
    if changed:
        return Verdict("left", one_line(", ".join(changed)))
    return Verdict("handled", one_line(_error_lines(ended, expected)[0]))


def judge_good(ended: Ended, begins: bool) -> Verdict:
    """Returns the verdict on a good input, which must be accepted, because otherwise refusals of bad ones prove
    nothing.

    Args:
        ended: The ended command.
        begins: Whether the command would start a trainer.
    """
    if ended.began if begins else ended.code == 0:
        return Verdict("handled", one_line(ended.began or "exit code 0"))
    last = next((line for line in reversed(ended.stderr.splitlines()) if line.strip()), "(nothing on stderr)")
    return Verdict("obscure", one_line(f"a good input was refused: exit code {ended.code}, {ended.stopped_for} {last}"))


def one_line(text: str, longest: int = 300) -> str:
    """Returns text for a table cell: no line breaks, no control characters, and not too long."""
    text = CONTROL.sub("�", " ".join(text.split()))
    return text if len(text) <= longest else text[:longest] + " …"


def _error_lines(ended: Ended, expected: Expected) -> list[str]:
    if expected.printed and "selfplay: " not in ended.stderr:
        return [line for line in ended.stdout.splitlines() if re.search(expected.says, line)]
    return [line for line in ended.stderr.splitlines() if ERROR.match(line) and not ANNOUNCED.match(line)]


def _obscurity(ended: Ended, expected: Expected) -> str:
    """Returns the reason why the refusal does not help, "" if it does."""
    errors = _error_lines(ended, expected)
    rest = [] if expected.printed else [line for line in ended.stderr.splitlines() if not ANNOUNCED.match(line)]
    noise = [line for line in rest if line not in errors]
    found = CONTROL.search(re.sub(r"^(Loading|Generating|Filtering).*$", "", ended.stdout + ended.stderr, flags=re.M))
    if found:
        return f"a control character {found[0]!r} reaches the terminal"
    if not errors:
        last = next((line for line in reversed(rest) if line.strip()), "(nothing)")
        return one_line(f"exit code {ended.code}, no line of error: {last}")
    if noise:
        return one_line(f"further lines: {noise[0]}")
    if len(errors) > 1 and not expected.printed:
        return one_line(f"several lines of error: {errors[0]}")
    if ended.code not in expected.codes:
        return one_line(f"exit code {ended.code}: {errors[0]}")
    if not re.search(expected.says, errors[0]):
        return one_line(f"does not name {expected.says!r}: {errors[0]}")
    if len(errors[0]) > LONGEST:
        return one_line(f"{len(errors[0]):,} characters: {errors[0]}")
    return ""
