"""One bad input as data, and its conversion to a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from chaos.cases import Case, Verdict
from chaos.command import Limits, run
from chaos.inputs.good import Good, link_model
from chaos.judge import Expected, judge, judge_good, listing

Prepare = Callable[[Path, Good], None]
"""Function that puts the command's input files into the empty folder."""


def nothing(folder: Path, good: Good) -> None:
    """Prepare no files, for inputs on the command line."""


@dataclass(frozen=True)
class Input:
    """One bad input for one command.

    Attributes:
        kind: Its row in the table.
        name: Its name, unique within its kind.
        arguments: Arguments of `selfplay`; paths are relative to the folder.
        says: Regular expression for the name that the error line must contain.
        codes: Allowed exit codes of a refusal; 1 is for errors that are not the user's mistake.
        printed: Whether the finding is a line on stdout, as in `slime check`.
        good: Whether this is a control, which must be accepted.
        begins: Whether a control would start a trainer.
    """

    kind: str
    name: str
    arguments: tuple[str, ...]
    says: str = ""
    prepare: Prepare = nothing
    env: Mapping[str, str] = field(default_factory=dict)
    codes: tuple[int, ...] = (2,)
    printed: bool = False
    good: bool = False
    begins: bool = False

    def case(self) -> Case:
        """Returns the input as a case for the harness."""
        name = re.sub(r"[^\w./=+]+", "-", f"{self.kind}/{self.name}").strip("-")  # needs no quotes in a shell
        return Case(self.kind, name, partial(_try, self))


def _try(tried: Input, folder: Path) -> Verdict:
    link_model(folder)
    (folder / "tmp").mkdir()
    tried.prepare(folder, Good(folder.parent / "good"))
    before = listing(folder)
    ended = run(tried.arguments, folder, {"TMPDIR": str(folder / "tmp"), **tried.env}, Limits())
    if tried.good:
        return judge_good(ended, tried.begins)
    return judge(ended, Expected(tried.says, tried.codes, tried.printed), before, listing(folder))
