#!/usr/bin/env python3
"""Checks the form of docstrings: their first word, the length of their first sentence, the subjects under `Raises:`.

usage: check_prose.py [FOLDER ...]

A docstring of a value is a noun phrase; a docstring of a function begins with a verb. `Whether` is allowed where the
value or the result is a bool.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("selfplay_pipeline", "bench", "studies", "chaos", "bin", "examples")
OPENINGS = re.compile(r"(What|Whether|How|Of|Why|Where|When|Who|Whose|Which)\b")
SUBJECT = re.compile(
    r"^\s*\w+(?:Error|Exit)?(?:, \w+Error)*: (it|its|they|that|this|there|so|one|none|nothing)\b", re.I
)
LONGEST = 25
"""Number of words that the first sentence may have."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Yields each docstring with its line, and whether `Whether` may begin it."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if isinstance(statement.value.value, str) and isinstance(before, ast.Assign | ast.AnnAssign):
                yield statement.lineno, statement.value.value, "bool" in ast.unparse(before)
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            returns = getattr(node, "returns", None)
            yield body[0].lineno, text, returns is not None and "bool" in ast.unparse(returns).split("[")[0]


def faults(text: str, may_be_whether: bool) -> Iterator[str]:
    """Yields the faults of one docstring."""
    text = text.strip()
    first = re.split(r"(?<=[.])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]
    opening = OPENINGS.match(text)
    if opening and not (opening[0] == "Whether" and may_be_whether):
        yield f"begins with {opening[0]!r}; begin with a noun (a value) or a verb (a function)"
    if (words := len(first.split())) > LONGEST:
        yield f"the first sentence has {words} words; at most {LONGEST}"
    if "Raises:" in text:
        for line in text.split("Raises:")[1].splitlines():
            if match := SUBJECT.match(line):
                yield f"under Raises: the subject is {match[1]!r}; name it"


def main(folders: list[str]) -> int:
    """Print all faults; returns the exit code."""
    found = 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            for line, text, may_be_whether in docstrings(ast.parse(path.read_text("utf-8"))):
                for fault in faults(text, may_be_whether):
                    print(f"{path}:{line}: {fault}")
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [name for name in FOLDERS if Path(name).is_dir()]))
