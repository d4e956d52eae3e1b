"""Text files are UTF-8, whatever the locale says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path("selfplay_pipeline")
LATIN = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
"""Makes Python decode files as ASCII unless it is told otherwise."""


def test_a_prompt_template_keeps_its_accents_in_a_locale_that_has_none(tmp_path: Path) -> None:
    (tmp_path / "t.j2").write_text("Réviseur", encoding="utf-8")
    script = (
        "import sys; from pathlib import Path; from selfplay_pipeline.core.templates import PromptTemplate;"
        "print(ascii(PromptTemplate(Path(sys.argv[1]), 'key').render()))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "t.j2")],
        env=os.environ | LATIN, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.stdout.strip() == r"'R\xe9viseur'", shown.stderr


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
