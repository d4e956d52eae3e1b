"""What commands and documents say about the figures: no more than DialOp's board and the controls allow."""

import re
from pathlib import Path

import pytest
from command import selfplay

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.registry import make_game

ROOT = Path(__file__).parents[2]


def test_an_evaluation_names_the_lines_of_play_without_words_and_what_they_are_not(tmp_path):
    options = ("--config", "tiny", "--num-states", "4", "--episodes", "1", "--output", str(tmp_path / "out"))
    done = selfplay("evaluate", "own-view", *options)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("rewards on the same states: ")]
    same, elsewhere = line.split("; on other states of the same configuration: ")
    named = re.findall(r"[a-z][a-z ]+(?= \d\.\d+ \[)", same.split(": ")[1])
    assert named == ["random", "own view", "optimum"] and elsewhere.startswith("silence 0.956 [")
    assert re.findall(r"[a-z]+(?= \d\.\d+ \[)", elsewhere) == ["silence", "pass", "counter"]
    assert "the hard filter too" in done.stdout and "none is a bound" in done.stdout
    assert "talk score" not in done.stdout, "which only a bound gives a meaning"


@pytest.mark.parametrize(("config", "filtered"), [("tiny", True), ("tiny_honest", False)])
def test_the_hard_filter_is_named_only_where_there_is_one(tmp_path, config, filtered):
    played = tmp_path / "games.jsonl"
    done = selfplay(
        "generate", "--config", config, "--player", "random", "--num-episodes", "4", "--output", str(played)
    )
    assert done.returncode == 0, done.stderr
    done = selfplay("report", str(played))
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    assert "silence: one fixed proposer" in page and ("the hard filter too" in page) == filtered
    assert ("the hard filter too" in make_game(load_config(config, {}).game).about_lines) == filtered


def test_the_documents_give_the_lines_that_are_stored():
    text = (ROOT / "docs" / "results" / "silence.md").read_text()
    for name in ("tiny", "tiny4x4", "tiny_honest", "studies/planner/4x4.yaml", "default"):
        lines = make_game(load_config(name, {"game.protocol": "free"}).game).wordless
        row = next(line for line in text.splitlines() if line.startswith(f"| `{name}`"))
        cells = [lines.get(kind) for kind in ("silence", "pass", "counter")]
        said = [f"{line.value:.3f} ± {line.standard_error:.3f}" if line else "not computed" for line in cells]
        assert row.split(" | ", 1)[1].startswith(" | ".join(said) + " |")
