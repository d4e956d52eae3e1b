"""Episodes, turns and rows as data frames: every value is that of the records, and files are checked as elsewhere."""

import subprocess
import sys

import pandas as pd
import pytest
from factories import make_episode, make_episodes, write_episodes

from selfplay_pipeline import (
    convert_episodes,
    episodes_frame,
    frames,
    load_config,
    read_episodes,
    rows_frame,
    turns_frame,
)
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.frames import EPISODES, OUTCOME, TURN, TURNS


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    records = [*make_episodes(3, 4), make_episode(3, ends_after=0)]
    return write_episodes(tmp_path_factory.mktemp("frames") / "games.jsonl", records)


def test_an_episode_is_a_row_with_the_values_of_its_record(path):
    frame, records = episodes_frame(path), list(read_episodes(path))
    assert list(frame.columns) == [*EPISODES, "reward_0", "reward_1"]
    assert {name: str(kind) for name, kind in frame.dtypes.items() if name in EPISODES} == EPISODES
    assert len(frame) == len(records) == 13
    for row, record in zip(frame.itertuples(), records, strict=True):
        assert (row.episode_id, row.group_index, row.episode) == (record.episode_id, record.group_index, record.episode)
        assert [getattr(row, name) for name in OUTCOME] == [getattr(record.outcome, name) for name in OUTCOME]
        assert (row.reward_0, row.reward_1) == (record.outcome.reward_of(0), record.outcome.reward_of(1))
        assert row.sampled_tokens == sum(sum(side.response_mask) for side in record.trajectories)
        assert (row.players, row.iteration, row.checkpoint) == ("policy, policy", 0, record.checkpoints[0])


def test_a_turn_is_a_row_and_a_legal_one_has_no_error(path):
    frame = turns_frame(path)
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == TURNS
    turns = [(record, number, turn) for record in read_episodes(path) for number, turn in enumerate(record.turns)]
    assert len(frame) == len(turns) > 0
    for row, (record, number, turn) in zip(frame.itertuples(), turns, strict=True):
        assert (row.episode_id, row.turn, row.seat) == (record.episode_id, number, turn.seat)
        for name in TURN:
            value = getattr(row, name)
            assert getattr(turn, name) == (None if pd.api.types.is_scalar(value) and pd.isna(value) else value)
    assert frame.error.notna().sum() == episodes_frame(path).num_illegal.sum() > 0


def test_a_reward_of_ones_own_is_shown_beside_the_games(path, tmp_path):
    own = tmp_path / "own.py"
    own.write_text("def reward(state, turns, outcome):\n    return [outcome.num_turns, -outcome.rewards[1]]")
    frame = episodes_frame(path, reward=own)
    assert (frame.trained_reward_0 == frame.num_turns).all() and (frame.trained_reward_1 == -frame.reward_1).all()
    pd.testing.assert_frame_equal(frame.drop(columns=["trained_reward_0", "trained_reward_1"]), episodes_frame(path))


@pytest.mark.parametrize("read", [episodes_frame, turns_frame])
def test_a_game_that_does_not_exist_is_refused(path, read):
    with pytest.raises(UserError, match=r"sums\.py: there is no such file; name the file of a game"):
        read(path, game="sums.py")


def test_a_reward_that_does_not_exist_is_refused(path):
    with pytest.raises(UserError, match=r"none\.py: there is no such file"):
        episodes_frame(path, reward="none.py")


def test_a_frame_does_not_depend_on_how_many_rows_are_added_at_once(path, monkeypatch):
    at_once = [read(path) for read in (episodes_frame, turns_frame)]
    monkeypatch.setattr(frames, "ROWS_AT_ONCE", 2)
    for read, expected in zip((episodes_frame, turns_frame), at_once, strict=True):
        pd.testing.assert_frame_equal(read(path), expected)


def test_a_row_of_parquet_is_a_row_whose_fields_are_columns(path):
    report = convert_episodes(load_config("tiny", {"convert.val_fraction": 0}), path, path.parent)
    frame = rows_frame(path.parent / "train.parquet")
    assert len(frame) == report.train_rows
    sampled = frame.groupby("extra_info.episode_id").response_mask.agg(lambda masks: sum(mask.sum() for mask in masks))
    episodes = episodes_frame(path).set_index("episode_id")
    assert sampled.to_dict() == episodes.sampled_tokens[sampled.index].to_dict()
    assert frame["reward_model.normalized_reward"].max() == episodes.normalized_reward.max()


def test_scripted_players_have_no_checkpoint_and_an_empty_file_has_all_columns(path, tmp_path):
    records = [
        record.model_copy(update={"players": ["random", "shy"], "trajectories": []}) for record in make_episodes(1, 2)
    ]
    frame = episodes_frame(write_episodes(tmp_path / "scripted.jsonl", records))
    assert frame.checkpoint.isna().all() and frame.iteration.isna().all() and set(frame.players) == {"random, shy"}
    (tmp_path / "empty.jsonl").touch()
    for read, types in ((episodes_frame, EPISODES), (turns_frame, TURNS)):
        empty = read(tmp_path / "empty.jsonl")
        assert ({name: str(kind) for name, kind in empty.dtypes.items()}, len(empty)) == (types, 0)


@pytest.mark.parametrize("read", [episodes_frame, turns_frame, rows_frame])
def test_a_file_that_is_missing_or_damaged_is_named(read, path, tmp_path):
    with pytest.raises(UserError, match=r"none\.file: [Nn]o such file"):
        read(tmp_path / "none.file")
    (tmp_path / "bad.file").write_text('{"episode": 1}\n')
    with pytest.raises(UserError, match=r"bad\.file: not a readable parquet file|bad\.file:1: not an episode \(field"):
        read(tmp_path / "bad.file")


@pytest.mark.long
def test_hooks_of_slime_import_no_pandas_since_every_process_of_a_training_loads_them():
    code = "import sys, selfplay_pipeline.slime.hooks; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
