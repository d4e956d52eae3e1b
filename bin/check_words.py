"""Outside games/NAME/ nobody says a word of a game: fails with the places where somebody does."""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "selfplay_pipeline"
WORDS = re.compile(
    r"\b(?:reviewers?|papers?|boards?|player 1|item types?|splits? of items|Deal or No Deal)\b", re.IGNORECASE
)
KINDS = {".py", ".js", ".css", ".j2", ".yaml"}


def main() -> int:
    """Print each place as `file:line: word`."""
    found = 0
    for path in sorted(PACKAGE.rglob("*")):
        inside = path.relative_to(PACKAGE).parts
        of_a_game = inside[0] == "games" and len(inside) > 2
        if path.suffix not in KINDS or of_a_game:
            continue
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            for word in WORDS.findall(line):
                print(f"{path.relative_to(PACKAGE.parent)}:{number}: {word!r} is a word of a game; ask the game for it")
                found += 1
    return min(found, 1)


if __name__ == "__main__":
    sys.exit(main())
