"""Comparing what two revisions wrote: nothing that differs is overlooked, and nothing else is told."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.differences import Fields, first_difference, first_different_line
from bench.same_as import different_array, different_table, unpack
from selfplay_pipeline.core.errors import UserError

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3),
    max_leaves=10,
)
GAME = {"play": 3, "turns": [{"player": 0, "text": "a"}, {"player": 1, "text": "b"}], "outcome": {"reward": 0.5}}


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value):
    assert first_difference(value, value) is None
    assert first_difference(value, value, tolerance=1e-6) is None


@pytest.mark.parametrize(
    ("new", "said"),
    [
        (GAME | {"play": 4}, "play is 4, and was 3"),
        (GAME | {"play": 3.0}, "play is 3.0, and was 3"),
        (GAME | {"seat": 1}, "seat is new: 1"),
        (GAME | {"turns": []}, "turns.0.player is gone, and was 0"),
        ({"turns": GAME["turns"], "outcome": {"reward": 0.5}}, "play is gone, and was 3"),
        (GAME | {"turns": [GAME["turns"][0], {"player": 1, "text": "c"}]}, "turns.1.text is 'c', and was 'b'"),
    ],
)
def test_a_difference_is_told_with_its_place(new, said):
    assert first_difference(GAME, new) == said


def test_a_renamed_field_is_compared_where_it_is_now():
    fields = Fields(renamed={"turns.*.player": ["turns.*.seat"], "outcome.reward": ["rewards.0", "rewards.1"]})
    turns = [{"seat": 0, "text": "a"}, {"seat": 1, "text": "b"}]
    new = {"play": 3, "turns": turns, "rewards": [0.5, 0.5]}
    assert first_difference(GAME, new, fields) is None
    assert first_difference(GAME, new | {"rewards": [0.5, 0.25]}, fields) == "rewards.1 is 0.25, and was 0.5"
    assert first_difference(GAME, GAME, fields) is not None


def test_an_earlier_value_with_the_new_name_is_compared_too():
    fields = Fields(renamed={"play": ["episode"]})
    assert first_difference({"episode": 1}, {"episode": 1}, fields) is None
    assert first_difference({"episode": 1}, {"episode": 2}, fields) == "episode is 2, and was 1"


def test_renaming_takes_all_that_is_inside():
    fields = Fields(renamed={"state": ["problem.board"]})
    assert first_difference({"state": {"table": [[1]]}}, {"problem": {"board": {"table": [[1]]}}}, fields) is None


def test_an_added_field_may_be_there_but_is_compared_where_it_was_before():
    fields = Fields(added={"policy.thinking": "since a commit"})
    assert first_difference({"policy": {"n": 1}}, {"policy": {"n": 1, "thinking": False}}, fields) is None
    assert first_difference({"policy": {"thinking": True}}, {"policy": {"thinking": False}}, fields) is not None


def test_what_is_apart_is_not_compared():
    fields = Fields(apart={"timing_*": "seconds"})
    assert first_difference({"timing_s/step": 1, "loss": 2}, {"timing_s/save": 3, "loss": 2}, fields) is None
    assert first_difference({"loss": 2}, {"loss": 3}, fields) == "loss is 3, and was 2"


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (0.5, 0.5 + 9e-7, True),
        (0.5, 0.5 + 2e-6, False),
        (1000.0, 1000.0009, True),
        (1000.0, 1000.002, False),
        (2, 2.0, True),
        (True, 1, False),
        (math.nan, math.nan, True),
        (math.inf, 1e300, False),
        (1.0, math.nan, False),
        ("a", "b", False),
    ],
)
def test_tolerance_is_for_numbers(old, new, same):
    assert (first_difference(old, new, tolerance=1e-6) is None) == same


def test_a_revision_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"git archive no-such-revision: .*no-such-revision"):
        unpack("no-such-revision", tmp_path / "code")


def test_lines_are_counted_from_1_and_none_may_be_missing():
    assert first_different_line([1, 2], [1, 2]) is None
    assert first_different_line([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}]) == "line 2: a is 3, and was 2"
    assert first_different_line([1, 2], [1]) == "1 lines, and there were 2"


def test_arrays_are_compared():
    ids, rewards = np.array([1, 2]), np.array([0.0, 0.5], dtype=np.float32)
    old = {"verl/input_ids": ids, "verl/input_ids/shape": np.array([2]), "verl/rm_scores": rewards}
    assert different_array(old, dict(old)) is None
    assert different_array(old, old | {"verl/input_ids": np.array([1, 3])}) == (
        "verl/input_ids: number 1 is 3, and was 2"
    )
    assert "float64" in str(different_array(old, old | {"verl/rm_scores": rewards.astype(np.float64)}))
    assert different_array(old, {"verl/input_ids": ids}) == "verl/input_ids/shape is gone"


def test_tables_differ_in_types_metadata_and_rows():
    table = _table([1, 2], pa.int32())
    assert different_table(table, _table([1, 2], pa.int32())) is None
    assert different_table(table, _table([1, 2], pa.int64())) == "column info.index is 'int64', and was 'int32'"
    assert different_table(table, _table([1, 3], pa.int32())) == "row 2: info.index is 3, and was 2"
    assert different_table(table, _table([1, 2], pa.int32(), 2)) == "metadata: temperature is 2, and was 1"


def _table(indices, kind, temperature=1):
    schema = pa.schema(
        {"info": pa.struct({"index": kind})}, metadata={b"selfplay": b'{"temperature": %d}' % temperature}
    )
    return pa.Table.from_pylist([{"info": {"index": index}} for index in indices], schema=schema)
