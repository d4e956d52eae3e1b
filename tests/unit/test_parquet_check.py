"""`selfplay convert --check` with a real tokenizer and verl's own dataset: what it counts and what it refuses."""

import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command import selfplay
from factories import POLICY, TINY, board_state, make_episodes, write_episodes

from selfplay_pipeline.convert.parquet_check import check_parquet
from selfplay_pipeline.convert.rows import METADATA_KEY
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate.trajectory import ChatTokenizer

OTHER = json.dumps(board_state(7, 7).to_dict())


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """Rows of two groups of two episodes; each seat spoke."""
    folder = tmp_path_factory.mktemp("converted")
    episodes = make_episodes(2, 2, chat=ChatTokenizer.load(TINY))
    run_convert(write_episodes(folder / "games.jsonl", episodes), folder)
    return folder / "train.parquet"


def changed(converted: Path, folder: Path, change: Any) -> Path:
    """The same file after a change to its rows, which come in the order of groups, episodes and seats."""
    table = pq.read_table(converted)
    rows = deepcopy(table.to_pylist())
    assert [row["extra_info"]["seat"] for row in rows] == [0, 1] * 4
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, table.schema), folder / "changed.parquet")
    return folder / "changed.parquet"


@pytest.mark.long
def test_a_whole_file_is_counted_and_the_report_lies_beside_it(converted):
    report = check_parquet(converted, TINY)
    text = converted.with_suffix(".check.txt").read_text()
    assert text == report.to_text() and text.startswith(f"{converted}: all checks passed\n")
    assert "loads 8 rows" in text and "\n  4 episodes: " in text and "\n  2 groups: " in text
    assert "placebo" not in text


def test_a_placebo_is_called_one(converted, tmp_path):
    run_convert(converted.with_name("games.jsonl"), tmp_path, placebo=True)
    assert "a placebo: " in check_parquet(tmp_path / "train.parquet", TINY).to_text()


def other_prompt(row):
    row["prompt"][-1]["content"] += "!"


def first_answer(row):
    return next(message for message in row["messages"] if message["role"] == "assistant")


def other_words(row):
    first_answer(row)["content"] += "!"


def fewer_words(row):
    row["messages"].remove(first_answer(row))


def other_token(row):
    at = row["response_mask"].index(1)
    row["response_ids"][at] += 1 if row["response_ids"][at] < 200 else -1


def with_state(state):
    return lambda row: row["reward_model"].update(game_state=state)


def in_rows(change, *numbers):
    return lambda rows: [change(rows[number]) for number in numbers]


def fewer_rows(rows):
    del rows[2:4]
    for row in rows[:2]:
        row["extra_info"]["group_rows"] = 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_rows(other_prompt, 2), r"row 2 \(.*, seat 0\): prompt_ids are not the chat template's tokens"),
        (in_rows(other_words, 3), r"row 3 \(.*, seat 1\): the unmasked tokens do not decode"),
        (in_rows(fewer_words, 0), r"row 0 \(.*, seat 0\): the unmasked tokens do not decode"),
        (in_rows(other_token, 7), r"row 7 \(.*, seat 1\): the unmasked tokens do not decode"),
        (in_rows(with_state(OTHER), 2), "group 0 episode 1: the perspectives differ in reward or state"),
        (in_rows(with_state(OTHER), 6, 7), "group 1 has 2 states, or fewer than two episodes"),
        (in_rows(with_state("{}"), 4, 5, 6, 7), "group 1: field 'game_state': .*; convert the episodes again"),
        (fewer_rows, "group 0 has 1 states, or fewer than two episodes"),
        (lambda rows: rows.clear(), "no rows; play episodes and convert them first"),
    ],
)  # fmt: skip
def test_rows_that_do_not_belong_together_are_refused_with_their_place(converted, tmp_path, change, words):
    path = changed(converted, tmp_path, change)
    with pytest.raises(UserError, match=f"^{path}: .*{words}"):
        check_parquet(path, TINY)
    assert not path.with_suffix(".check.txt").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.append_column("x", [[1] * 8]), "its columns are not those that `selfplay convert` writes"),
        (lambda table: without(table, "messages"), "column 'messages' has a row without a value"),
        (lambda table: of_game(table, "chess"), "field 'game' of its metadata: .*chess"),
    ],
)  # fmt: skip
def test_columns_and_metadata_of_others_are_refused(converted, tmp_path, change, words):
    path = tmp_path / "changed.parquet"
    pq.write_table(change(pq.read_table(converted)), path)
    with pytest.raises(UserError, match=f"^{path}: {words}"):
        check_parquet(path, TINY)


def without(table, name):
    at = table.schema.get_field_index(name)
    values = [None, *table.column(name).to_pylist()[1:]]
    return table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type))


def of_game(table, name):
    facts = json.loads(table.schema.metadata[METADATA_KEY]) | {"game": name}
    return table.replace_schema_metadata({METADATA_KEY: json.dumps(facts)})


def test_a_state_may_be_played_anew_in_each_group(converted, tmp_path):
    """States are compared within a group only."""
    path = changed(converted, tmp_path, in_rows(with_state(OTHER), 4, 5, 6, 7))
    assert "2 groups" in check_parquet(path, TINY).to_text()


def test_what_has_no_effect_beside_a_check_is_refused(converted):
    done = selfplay("convert", "episodes.jsonl", "--check", str(converted), "--skip-bad", "--val-fraction", "0.5")
    assert done.returncode == 2
    for words in ("convert: --check only verifies a file; leave out ", "EPISODES", "--skip-bad", "--val-fraction"):
        assert words in done.stderr


def with_template(folder: Path, change: Any) -> str:
    """A copy of the tiny model with another chat template."""
    shutil.copytree(TINY, folder)
    path = folder / "chat_template.jinja"
    path.write_text(change(path.read_text()))
    return str(folder)


def test_rows_are_checked_with_the_model_that_sampled_them_unless_another_is_given(tmp_path, monkeypatch):
    model = with_template(tmp_path / "other", lambda old: old.replace("<|im_start|>", "!<|im_start|>", 1))
    episodes = list(
        make_episodes(2, 2, chat=ChatTokenizer.load(model), policy=POLICY.model_copy(update={"checkpoint": model}))
    )
    run_convert(write_episodes(tmp_path / "games.jsonl", episodes), tmp_path)
    check = ("convert", "--check", str(tmp_path / "train.parquet"))
    for arguments in ((), ("--config", "tiny")):
        done = selfplay(*check, *arguments)
        assert done.returncode == 0, done.stderr
        assert "all checks passed" in done.stdout
    (tmp_path / "own.yaml").write_text(f"model: {TINY}\n")
    for arguments in (("--model", TINY), ("--config", str(tmp_path / "own.yaml"))):
        done = selfplay(*check, *arguments)
        assert done.returncode == 2 and done.stderr.endswith("; give --model, the model that played\n")
