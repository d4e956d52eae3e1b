"""Fails if a file of the package outside the games' folders contains a word of a game, and prints the places.

A game's words are its name and the lines of `games/NAME/words.txt`: regular expressions, matched in any case and inside
identifiers (`best_board`, `BoardEnv`). Only `games/registry.py` and the suite of
`selfplay benchmark`, `games/benchmark.yaml`, may name the games.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "selfplay_pipeline"
GAMES = PACKAGE / "games"
KINDS = {".py", ".js", ".css", ".j2", ".yaml"}
NAMING = {GAMES / "registry.py", GAMES / "benchmark.yaml"}
NAMES = {
    r"data/matching_game_\w+": "default folders, which users' runs and scripts have",
    r"matching_selfplay_online_grpo": "the configuration that users give to verl by this name",
    r"(?:matching_config\.yaml|run_slime_matching\.sh)": "files that users give to slime, and start it with",
}
"""Expressions that may contain a word of a game, with the reason."""


def main() -> int:
    """Print each place as `file:line: word`; returns the exit code."""
    folders = [path.parent for path in sorted(GAMES.glob("*/game.py"))]
    words = {folder.name: words_of(folder) for folder in folders}
    found = 0
    for path in sorted(path for path in PACKAGE.rglob("*") if path.suffix in KINDS):
        if path in NAMING or any(folder in path.parents for folder in folders):
            continue
        name = str(path.relative_to(PACKAGE.parent))
        for number, line in enumerate([name, *path.read_text("utf-8").splitlines()]):
            for game, pattern in words.items():
                for match in pattern.finditer(re.sub("|".join(NAMES), "", line)):
                    print(f"{name}:{number}: {match.group()!r} is a word of the game {game}; ask the game for it")
                    found += 1
    return min(found, 1)


def words_of(game: Path) -> re.Pattern[str]:
    """Returns the pattern of the words of the game in this folder."""
    file = game / "words.txt"
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    words = [game.name, *(line for line in lines if line and not line.startswith("#"))]
    return re.compile(rf"(?<![a-z])(?<![A-Z](?=[A-Z]))(?i:{'|'.join(words)})(?![a-z])")


if __name__ == "__main__":
    sys.exit(main())
