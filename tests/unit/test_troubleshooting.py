"""The page on troubleshooting quotes messages as they are printed today."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
OTHERS = [ROOT / "Makefile", ROOT / "bin" / "install_browser.sh"]
NOT_OURS = "selfplay: command not found"


def messages() -> list[str]:
    """What is printed: quoted in bold, on one line or two; `…` stands for what differs."""
    bold = re.findall(r"\*\*(.+?)\*\*", PAGE, re.DOTALL)
    quoted = [" ".join(text.split()) for words in bold for text in re.findall(r"`([^`]+)`", words)]
    return [text for text in quoted if " " in text and text != NOT_OURS]


def printed() -> Iterator[str]:
    """All literal text of the program; of a formatted string the parts between what is put in."""
    for path in (ROOT / "selfplay_pipeline").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
    yield from (path.read_text() for path in OTHERS)


@pytest.fixture(scope="module")
def literals() -> list[str]:
    return list(printed())


def test_there_are_messages():
    assert len(messages()) >= 30


@pytest.mark.parametrize("message", messages())
def test_a_quoted_message_is_printed_somewhere(literals, message):
    # The program puts its lines together from parts, most often at a semicolon or beside what differs.
    parts = [part.strip(" :,.'()") for part in re.split("…|;", message)]
    missing = [part for part in parts if not any(part in literal for literal in literals)]
    assert not missing
