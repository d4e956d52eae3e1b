"""Dialogues are appended whole, survive a kill, and a bad line is named."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.report.questions.records import FILE_NAME, AskingRecord, log_step, read_records


def dialogue(step: int = 0, group: int = 0, **fields) -> AskingRecord:
    counts = {"turns": 9, "messages": 4, "questions": 3, "specific": 2, "facts": 2, "repeated": 1, "learned": 1}
    counts |= {"partner_messages": 4, "leaks": 0}
    given = {"episode_id": f"g{group}", "reward": 0.5, "status": "agreed"} | counts | fields
    return AskingRecord(step=step, group=group, **given)


def test_what_is_appended_is_read_in_the_same_order(tmp_path):
    first, then = [dialogue(0, 1), dialogue(0, 2)], [dialogue(1, 1, reward=0.1)]
    log_step(tmp_path / "new" / "logs", 0, first)
    log_step(tmp_path / "new" / "logs", 1, then)
    assert list(read_records(tmp_path / "new" / "logs" / FILE_NAME)) == first + then


def test_a_step_takes_the_place_of_its_own_lines_and_of_later_ones(tmp_path):
    for step in (0, 1, 2, 3, 2):
        log_step(tmp_path, step, [dialogue(step)])
    assert [record.step for record in read_records(tmp_path / FILE_NAME)] == [0, 1, 2]


@given(st.integers(1, 400))
def test_a_file_cut_anywhere_keeps_every_whole_line_and_can_be_continued(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("logs")
    path = folder / FILE_NAME
    whole = [dialogue(0, group) for group in range(3)]
    log_step(folder, 0, whole)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - cut])
    kept = path.read_bytes().count(b"\n")
    assert kept < 3
    assert list(read_records(path))[:kept] == whole[:kept]
    log_step(folder, 5, [dialogue(5)])
    assert list(read_records(path)) == [*whole[:kept], dialogue(5)]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reward": 1.5}, "field 'reward'"),
        ({"step": "soon"}, "field 'step'"),
        ({"step": 2**70}, "field 'step'"),
        ({"group": 2**70}, "field 'group'"),
        ({"surprise": 1}, "field 'surprise'"),
        ({"questions": 5}, "'questions' is 5, above 'messages' 4"),
    ],
)
def test_a_bad_line_is_named_with_its_file_and_field(tmp_path, change, field):
    log_step(tmp_path, 0, [dialogue()])
    path = tmp_path / FILE_NAME
    with path.open("a") as file:
        file.write(json.dumps(json.loads(dialogue().model_dump_json()) | change) + "\n")
    with pytest.raises(UserError) as error:
        list(read_records(path))
    assert f"{path}:2: " in str(error.value) and field in str(error.value) and "\n" not in str(error.value)


def test_a_torn_line_is_tolerated_only_at_the_end(tmp_path):
    log_step(tmp_path, 0, [dialogue()])
    path = tmp_path / FILE_NAME
    path.write_bytes(b'{"step": 1, "game\n' + path.read_bytes())
    with pytest.raises(UserError, match=rf"{FILE_NAME}:1: "):
        list(read_records(path))
