"""Comparing what two revisions wrote: nothing that differs is overlooked, and nothing else is told."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.differences import Fields, first_difference, first_different_line
from bench.same_as import different_array, different_table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=3), inside, max_size=3),
    max_leaves=10,
)
GAME = {"play": 3, "turns": [{"player": 0, "text": "a"}, {"player": 1, "text": "b"}], "outcome": {"reward": 0.5}}
NOW = {"play": 3, "turns": [{"seat": 0, "text": "a"}, {"seat": 1, "text": "b"}], "rewards": [0.5, 0.5]}
RENAMED = Fields(renamed={"turns.*.player": ["turns.*.seat"], "outcome.reward": ["rewards.0", "rewards.1"]})
ADDED, APART = Fields(added={"policy.thinking": "since a commit"}), Fields(apart={"timing_*": "seconds"})


@given(VALUES)
def test_a_value_does_not_differ_from_itself(value):
    assert first_difference(value, value) is None
    assert first_difference(value, value, tolerance=1e-6) is None


@pytest.mark.parametrize(
    ("fields", "old", "new", "said"),
    [
        (Fields(), GAME, GAME | {"play": 3.0}, "play is 3.0, and was 3"),
        (Fields(), GAME, GAME | {"seat": 1}, "seat is new: 1"),
        (Fields(), GAME, GAME | {"turns": []}, "turns.0.player is gone, and was 0"),
        (RENAMED, GAME, NOW, None),
        (RENAMED, GAME, NOW | {"rewards": [0.5, 0.25]}, "rewards.1 is 0.25, and was 0.5"),
        (RENAMED, GAME, GAME, "turns.0.seat is gone, and was 0"),
        (ADDED, {"policy": {"n": 1}}, {"policy": {"n": 1, "thinking": False}}, None),
        (ADDED, {"policy": {"thinking": True}}, {"policy": {"thinking": False}}, "policy.thinking"),
        (APART, {"timing_s/step": 1, "loss": 2}, {"timing_s/save": 3, "loss": 2}, None),
        (APART, {"loss": 2}, {"loss": 3}, "loss is 3, and was 2"),
    ],
)
def test_a_difference_is_told_with_its_place_unless_it_was_meant(fields, old, new, said):
    found = first_difference(old, new, fields)
    assert (found is None) == (said is None) and (said or "") in (found or "")


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (0.5, 0.5 + 9e-7, True), (0.5, 0.5 + 2e-6, False), (1000.0, 1000.0009, True), (1000.0, 1000.002, False),
        (2, 2.0, True), (True, 1, False), (math.nan, math.nan, True), (math.inf, 1e300, False), (1.0, math.nan, False),
    ],
)  # fmt: skip
def test_tolerance_is_for_numbers(old, new, same):
    assert (first_difference(old, new, tolerance=1e-6) is None) == same


def test_arrays_tables_and_lines_differ_in_types_metadata_and_rows():
    old = {"ids": np.array([1, 2]), "scores": np.array([0.0, 0.5], dtype=np.float32)}
    assert different_array(old, dict(old)) is None
    assert different_array(old, old | {"ids": np.array([1, 3])}) == "ids: number 1 is 3, and was 2"
    assert "float64" in str(different_array(old, old | {"scores": old["scores"].astype(np.float64)}))
    assert different_array(old, {"ids": old["ids"]}) == "scores is gone"

    def table(indices, kind, temperature=1):
        schema = pa.schema({"info": pa.struct({"index": kind})}, metadata={b"selfplay": b'{"t": %d}' % temperature})
        return pa.Table.from_pylist([{"info": {"index": index}} for index in indices], schema=schema)

    first = table([1, 2], pa.int32())
    assert different_table(first, table([1, 2], pa.int32())) is None
    assert different_table(first, table([1, 2], pa.int64())) == "column info.index is 'int64', and was 'int32'"
    assert different_table(first, table([1, 3], pa.int32())) == "row 2: info.index is 3, and was 2"
    assert different_table(first, table([1, 2], pa.int32(), 2)) == "metadata: t is 2, and was 1"
    assert first_different_line([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}]) == "line 2: a is 3, and was 2"
    assert first_different_line([1, 2], [1]) == "1 lines, and there were 2"
