"""One bad input as data, and how it becomes a case."""

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
"""Puts into the empty folder what the command is to read."""


def nothing(folder: Path, good: Good) -> None:
    """All is said on the command line."""


@dataclass(frozen=True)
class Input:
    """One bad input for one command.

    Attributes:
        kind: its row in the table.
        name: unique within its kind.
        arguments: of `selfplay`; paths are relative to the folder.
        says: a regular expression for what the line of error must name.
        codes: exit codes of a refusal; 1 is for what is not the user's mistake.
        printed: the finding is a line on stdout, as those of `slime check` are.
        good: a control, which must be accepted.
        begins: of a control: it would start a trainer.
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
        """As the harness runs it."""
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
