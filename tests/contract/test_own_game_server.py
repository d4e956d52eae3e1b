"""A game that is not part of the package is played by a model with a server, converted to rows and evaluated."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from command import selfplay

from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.generate.read_records import read_episodes

TINY = "data/tiny_model"

pytestmark = pytest.mark.usefixtures("no_game_named")


def test_a_model_plays_a_game_of_ones_own_and_its_turns_become_rows(sglang_server, tmp_path):
    games, config = tmp_path / "games.jsonl", tmp_path / "own.yaml"
    config.write_text("base: tiny_honest\ngame: {path: examples/sums.py, max_length: 8}\n")
    common = ("--config", str(config), "--server-url", sglang_server.url)
    played = ("--model", TINY, "--num-episodes", "8", "--episodes-per-state", "4")
    done = selfplay("generate", *common, *played, "--output", str(games))
    assert done.returncode == 0, done.stderr
    records = list(read_episodes(games))
    assert len(records) == 8 and {record.game for record in records} == {"sums"}
    done = selfplay("convert", str(games), "--game", "examples/sums.py")
    assert done.returncode == 0, done.stderr
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert len(rows) == sum(len({turn.seat for turn in record.turns}) for record in records)
    assert {row["data_source"] for row in rows} == {"sums_selfplay"}
    assert sum(len(part.index) for part in read_rows(tmp_path / "train.parquet")) == len(rows)
    output = tmp_path / "evaluation"
    counts = ("--num-states", "2", "--episodes", "1", "--output", str(output))
    done = selfplay("evaluate", TINY, *common, *counts)
    assert done.returncode == 0, done.stderr
    modes = json.loads((Path(output) / "evaluation.json").read_text())["modes"]
    assert {name: mode["episodes"] for name, mode in modes.items()} == {"sampled": 2, "greedy": 2}
