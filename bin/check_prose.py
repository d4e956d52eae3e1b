#!/usr/bin/env python3
"""Checks what a program can check of docstrings: short first sentences, named subjects under `Raises:`, no knots.

usage: check_prose.py [FOLDER ...]

A function's docstring may begin with an imperative ("Return the claim") or in the third person ("Returns the claim").
A knot is a chain of relative words in place of a noun, which must be read twice; KNOTS has them.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("selfplay_pipeline", "bench", "studies", "chaos", "bin", "examples")
KNOTS = re.compile(
    r"\b(the form in which|(that|those|the ones?) (of|by|in|with|from|to) (which|whom|whose)"
    r"|(what|that) which|of that which)\b",
    re.I,
)
SUBJECT = re.compile(
    r"^\s*\w+(?:Error|Exit)?(?:, \w+Error)*: (it|its|they|that|this|there|so|one|none|nothing)\b", re.I
)
LONGEST = 25
"""Number of words that the first sentence may have."""

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yields each docstring with its line, those of values included."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            if isinstance(statement.value.value, str) and isinstance(before, ast.Assign | ast.AnnAssign):
                yield statement.lineno, statement.value.value
        if isinstance(node, Documented) and (text := ast.get_docstring(node)):
            yield body[0].lineno, text


def faults(text: str) -> Iterator[str]:
    """Yields the faults of one docstring."""
    text = text.strip()
    first = re.split(r"(?<=[.])\s", " ".join(text.split("\n\n")[0].split()), maxsplit=1)[0]
    if (words := len(first.split())) > LONGEST:
        yield f"the first sentence has {words} words; at most {LONGEST}"
    for knot in KNOTS.finditer(" ".join(text.split())):
        yield f"{knot[0]!r} must be read twice; use a noun"
    if "Raises:" in text:
        for line in text.split("Raises:")[1].splitlines():
            if match := SUBJECT.match(line):
                yield f"under Raises: the subject is {match[1]!r}; name it"


def main(folders: list[str]) -> int:
    """Print all faults; returns the exit code."""
    found = 0
    for folder in folders:
        for path in sorted(Path(folder).rglob("*.py")):
            for line, text in docstrings(ast.parse(path.read_text("utf-8"))):
                for fault in faults(text):
                    print(f"{path}:{line}: {fault}")
                    found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [name for name in FOLDERS if Path(name).is_dir()]))
