"""Episodes that version 0.2 wrote are read by every version after it: this file is never written anew."""

import pyarrow.parquet as pq
from command import SUPPORT
from factories import write_episodes

from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.generate.read_records import parse_episode

STORED = SUPPORT / "stored" / "games_2.jsonl"
"""Two episodes of one state."""


def test_stored_episodes_are_read_and_nothing_of_them_is_lost():
    for line in STORED.read_bytes().splitlines():
        record = parse_episode(line)
        assert (record.schema_version, record.players) == (2, ["policy", "shy"])
        assert record.model_dump_json().encode() == line


def test_stored_episodes_become_the_rows_that_they_always_were(tmp_path):
    run_convert(STORED, tmp_path / "stored")
    records = [parse_episode(line) for line in STORED.read_bytes().splitlines()]
    run_convert(write_episodes(tmp_path / "games.jsonl", records), tmp_path / "new")
    first, second = (pq.read_table(tmp_path / name / "train.parquet") for name in ("stored", "new"))
    assert first.equals(second, check_metadata=True) and first.num_rows == 2
    assert first.column("extra_info").to_pylist()[0]["episode_id"] == "s0-g000004-p0"
    assert [row["normalized_reward"] for row in first.column("reward_model").to_pylist()] == [1, 18 / 22]
