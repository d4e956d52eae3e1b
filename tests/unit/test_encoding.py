"""Text files are UTF-8, whatever the locale says."""

from __future__ import annotations

import re
from pathlib import Path

PACKAGE = Path("selfplay_pipeline")


def test_every_file_is_read_and_written_with_a_named_encoding() -> None:
    """ruff's rule knows only the calls whose object it recognises as a path."""
    unnamed = re.compile(r"\.read_text\(\)|\.write_text\((?!.*(?:utf-8|def |path, ))|\.open\((\"[wra]\")?\) as")
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if unnamed.search(line)
    ]
    assert found == []
