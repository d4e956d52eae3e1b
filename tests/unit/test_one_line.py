"""A game is one folder and one line: in a copy of the package one of the games goes, and another comes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
COMMANDS = """
import sys
from selfplay_pipeline.cli import main
for arguments in {commands}:
    sys.argv[1:] = arguments.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, arguments
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The program with a game `haggling` in place of bargaining: its folder, and the one line."""
    root = tmp_path_factory.mktemp("copy")
    unneeded = shutil.ignore_patterns("*.safetensors", "*.jsonl")
    for folder in ("selfplay_pipeline", "bin"):
        shutil.copytree(ROOT / folder, root / folder, ignore=unneeded)
    games = root / "selfplay_pipeline" / "games"
    haggling = (games / "bargaining").rename(games / "haggling")
    (haggling / "configs" / "tiny_bargaining.yaml").rename(haggling / "configs" / "tiny_haggling.yaml")
    for path in (path for path in haggling.rglob("*") if path.suffix in (".py", ".yaml")):
        path.write_text(path.read_text().replace("bargaining", "haggling"))
    lines = (games / "registry.py").read_text()
    assert lines.count("bargaining") == 1
    (games / "registry.py").write_text(lines.replace('    "bargaining",\n', '    "haggling",\n'))
    return root


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *command], cwd=copy, env=environment, capture_output=True, text=True)


def test_a_game_that_is_one_line_is_played_shown_and_measured_and_the_one_that_went_is_named_nowhere(copy):
    commands = [
        "generate --config tiny_haggling --player fair --player random --num-episodes 8 --output episodes.jsonl",
        "show episodes.jsonl",
        "evaluate fair --config tiny_haggling --num-states 4 --output evaluation",
        "config --config tiny_haggling",
    ]
    done = run(copy, "-c", COMMANDS.format(commands=commands))
    assert done.returncode == 0, done.stderr
    assert "8 episodes" in done.stdout and "own value" in done.stdout and "semi_lambda: 0.5" in done.stdout
    (copy / "own.yaml").write_text("game: {name: bargaining}")
    for config, words in (("tiny_bargaining", "tiny_haggling"), ("own.yaml", "give one of matching, haggling, ")):
        done = run(copy, "-m", "selfplay_pipeline.cli", "config", "--config", config)
        assert done.returncode == 2 and words in " ".join(done.stderr.split())


def test_words_of_any_game_are_found_outside_of_its_folder(copy):
    assert run(copy, "bin/check_words.py").stdout == ""
    (copy / "selfplay_pipeline" / "generate" / "board.py").write_text("class HagglingEnv: ...\nA = 'scoreboard'\n")
    found = re.findall(r"board\.py:(\d): '(\w+)' is a word of the game (\w+)", run(copy, "bin/check_words.py").stdout)
    assert found == [("0", "board", "matching"), ("1", "Haggling", "haggling")]
