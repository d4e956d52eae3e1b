"""What no model and no game can have given is refused with its place, before anything is written or trained on."""

import json
import os
from copy import deepcopy
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from factories import make_episode, make_episodes, write_episodes
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.convert.check import check_parquet
from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.rows import METADATA_KEY, SCHEMA, episode_to_rows
from selfplay_pipeline.convert.run import _vocabulary, run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate import records
from selfplay_pipeline.train.groups import read_data

VOCABULARY = 400
SAID = {"role": "user", "content": "hello"}
NAN, INFINITE = float("nan"), float("inf")


@cache
def episodes():
    return [json.loads(episode.model_dump_json()) for episode in make_episodes(2, 2)]


@cache
def rows():
    return [row for episode in make_episodes(2, 2) for row in episode_to_rows(episode, 2, 4)]


def put(data, path, value):
    """Set what lies at a dotted path; `…` in place of a value removes it, a function changes it."""
    *outer, last = path.split(".")
    for key in outer:
        data = data[int(key) if key.lstrip("-").isdigit() else key]
    last = int(last) if last.lstrip("-").isdigit() else last
    if value is ...:
        del data[last]
    else:
        data[last] = value(data[last]) if callable(value) else value


def without_mask(seat_or_row):
    """Token streams whose last own token is cut off, so that they end with an observation."""
    for field, value in (("response_ids", 5), ("response_mask", 0), ("response_logprobs", 0.0)):
        seat_or_row[field].append(value)
    return seat_or_row


def negative_if_masked(seat_or_row):
    seat_or_row["response_mask"][0] = 0
    seat_or_row["response_logprobs"][0] = -0.5
    return seat_or_row


def negative_if_masked_alone(seat_or_row):
    seat_or_row["response_logprobs"] = [0.0] * len(seat_or_row["response_logprobs"])
    return negative_if_masked(seat_or_row)


STREAMS = [
    ("response_logprobs.0", NAN, "response_logprobs"),
    ("response_logprobs.0", -INFINITE, "response_logprobs"),
    ("response_logprobs.0", INFINITE, "response_logprobs"),
    ("response_logprobs.0", 0.25, "response_logprobs"),
    ("response_logprobs.0", -1e30, "response_logprobs"),
    ("response_logprobs.0", -104.5, "response_logprobs"),
    ("response_logprobs.0", None, "response_logprobs"),
    ("response_logprobs", lambda found: found[:-1], "response_logprobs"),
    ("response_logprobs", lambda found: [*found, -1.0], "response_logprobs"),
    ("response_mask", lambda found: found[:-1], "response_mask"),
    ("response_mask.0", 2, "response_mask"),
    ("response_mask.0", -1, "response_mask"),
    ("response_ids.0", -1, "response_ids"),
    ("response_ids.0", VOCABULARY, "response_ids"),
    ("response_ids.0", 2**31 - 1, "response_ids"),
    ("prompt_ids.1", -7, "prompt_ids"),
    ("prompt_ids.1", VOCABULARY, "prompt_ids"),
    ("prompt_ids", [], "prompt_ids"),
]
"""What is wrong with one seat's tokens, and the field that is named."""

LINES = [
    *((f"trajectories.0.{path}", value, field) for path, value, field in STREAMS),
    ("trajectories.0", without_mask, "response_mask"),
    ("trajectories.0", negative_if_masked, "response_logprobs"),
    ("trajectories.0", negative_if_masked_alone, "response_logprobs"),
    ("trajectories.0.response_ids.0", 2**31, "response_ids"),
    ("trajectories.0.response_ids.0", 2**80, "64 bits"),
    ("trajectories.0.response_logprobs.0", -1e300, "response_logprobs"),
    ("trajectories.0.seat", 2, "'players'"),
    ("trajectories.0.seat", -1, "seat"),
    ("trajectories.0.seat", 1, "'trajectories'"),
    ("trajectories.0.num_prompt_messages", 99, "num_prompt_messages"),
    ("trajectories.0.num_prompt_messages", -1, "num_prompt_messages"),
    ("trajectories.0.num_prompt_messages", 0, "num_prompt_messages"),
    ("turns.0.seat", 2, "'players'"),
    ("turns.0.action", "sing", "'turns.0.action'"),
    ("turns.1.error_kind", "rude", "'turns.1.error_kind'"),
    ("turns.0.proposal", [[0, 0], [0, 1], [1, 2]], "'turns.0.proposal'"),
    ("outcome.status", "won", "'outcome.status'"),
    ("outcome.status", "turn_limit", "'outcome.normalized_reward'"),
    ("outcome.rewards", [0.5], "'outcome.rewards'"),
    ("outcome.rewards", [0.5, 0.5, 0.5], "'outcome.rewards'"),
    ("players", [], "'players'"),
    ("players", ["policy"] * 3, "'players'"),
    ("players", ["policy", "random"], "'trajectories'"),
    ("group_index", -1, "'group_index'"),
    ("group_index", 2**31, "'group_index'"),
    ("group_index", 2**70, "'group_index'"),
    ("episode", -1, "'episode'"),
    ("episode", 2**31, "'episode'"),
    ("game", "chess", "'game'"),
    ("policy.temperature", NAN, "'policy.temperature'"),
    ("policy.temperature", INFINITE, "'policy.temperature'"),
    ("policy.temperature", -0.5, "'policy.temperature'"),
    ("policy.max_new_tokens", -1, "'policy.max_new_tokens'"),
    ("outcome.normalized_reward", NAN, "normalized_reward"),
    ("outcome.normalized_reward", 1.5, "normalized_reward"),
    ("outcome.normalized_reward", lambda found: 0.5 * found + 0.25, "normalized_reward"),
    ("outcome.best", lambda found: found + 1, "'outcome.best'"),
    ("outcome.best", lambda found: found - 1, "'outcome.best'"),
    ("outcome.best", 0, "'outcome.best'"),
    ("outcome.score", NAN, "'outcome.score'"),
    ("outcome.num_turns", -1, "'outcome.num_turns'"),
    ("state.best_assignment_reward", lambda found: found + 1, "'state'"),
    ("state.best_assignment_reward", NAN, "'state'"),
    ("state.table", [[1, 2], [3]], "'state'"),
    ("state.scale1", INFINITE, "'state'"),
]


def refused_line(folder, text):
    """What is said of a file whose second line is `text`."""
    lines = [json.dumps(episode).encode() for episode in episodes()]
    path = folder / "games.jsonl"
    path.write_bytes(b"\n".join([lines[0], text, *lines[2:]]) + b"\n")
    with pytest.raises(UserError) as refused:
        run_convert(path, folder / "out")
    assert not (folder / "out").exists(), "nothing is written"
    said = str(refused.value)
    assert said.startswith(f"{path}:2: ") and "\n" not in said
    return said


@pytest.fixture
def model(tmp_path, monkeypatch):
    """The checkpoint that the games name, with a small vocabulary."""
    (tmp_path / "data" / "tiny_model").mkdir(parents=True)
    (tmp_path / "data" / "tiny_model" / "config.json").write_text(json.dumps({"vocab_size": VOCABULARY}))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("path", "value", "field"), LINES)
def test_an_impossible_episode_is_refused_with_its_line_and_field(tmp_path, path, value, field):
    _vocabulary.cache_clear()
    episode = deepcopy(episodes()[1])
    put(episode, path, value)
    assert field in refused_line(tmp_path, json.dumps(episode).encode())


def test_a_score_that_the_proposal_does_not_have_is_refused(tmp_path):
    episode = next(episode for episode in episodes() if episode["outcome"]["status"] == "agreed")
    lower = deepcopy(episode)
    outcome = lower["outcome"]
    outcome["score"] -= 1
    outcome["normalized_reward"] = outcome["score"] / outcome["best"]
    assert "'outcome.score'" in refused_line(tmp_path, json.dumps(lower).encode())
    lower["outcome"] = episode["outcome"] | {"proposal": [[0, 0], [0, 1], [9, 2]]}
    assert "'outcome.proposal'" in refused_line(tmp_path, json.dumps(lower).encode())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda line: line.replace(b'"episode": ', b'"episode": 1e400, "x": '), "number"),
        (lambda line: line.replace(b'"text": "', b'"text": "\xff\xfe', 1), "JSON"),
        (lambda line: line.replace(b'"text": "', b'"text": "\0', 1), "JSON"),
        (lambda line: line.replace(b'"text": "', b'"text": "\\ud800', 1), "JSON"),
        (lambda line: b"\0" * 1000, "JSON"),
        (lambda line: b"[" * 100_000, "JSON"),
        (lambda line: line.replace(b'"state": {', b'"state": {"deep": ' + b"[" * 500 + b"]" * 500 + b", "), ""),
    ],
)
def test_a_line_that_is_no_json_object_of_ours_is_refused(tmp_path, change, words):
    line = json.dumps(episodes()[1]).encode()
    assert change(line) != line
    assert words in refused_line(tmp_path, change(line))


def test_quotes_colons_and_backslashes_in_texts_are_no_keys(tmp_path):
    episode = deepcopy(episodes()[1])
    for text in ('":', '" :', '\\":', '{"episode": 1, "episode": 2}', "\\\\", 'a"\t:'):
        episode["trajectories"][0]["messages"].append({"role": "user", "content": text})
        assert records.parse_episode(json.dumps(episode).encode()) == records.parse_episode(
            json.dumps(episode, separators=(",", ":")).encode()
        )


def test_a_line_beyond_the_limit_is_refused_without_being_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MAX_LINE", 1 << 20)
    assert "longer than 1 MiB, the limit of a line" in refused_line(tmp_path, b" " * (1 << 20) + b"x")


ROWS = [
    *((path, value, field) for path, value, field in STREAMS if value is not None),
    ("", without_mask, "response_mask"),
    ("", negative_if_masked, "response_logprobs"),
    ("response_ids", [], "response_ids': is empty"),
    ("extra_info.index", -1, "index"),
    ("extra_info.index", 2**31, "index"),
    ("extra_info.episode", -1, "episode"),
    ("extra_info.episode", 2, "episode"),
    ("extra_info.episode", 0, "extra_info"),
    ("extra_info.episodes_per_state", 0, "episodes_per_state"),
    ("extra_info.episodes_per_state", 1, "episode"),
    ("extra_info.episodes_per_state", 2**40, "episodes_per_state"),
    ("extra_info.seat", -1, "seat"),
    ("extra_info.seat", 2, "seat"),
    ("extra_info.seat", 1, "extra_info"),
    ("reward_model.normalized_reward", NAN, "normalized_reward"),
    ("reward_model.normalized_reward", 1.01, "normalized_reward"),
    ("reward_model.normalized_reward", -0.1, "normalized_reward"),
    ("reward_model.normalized_reward", lambda found: found + 0.1, "normalized_reward"),
    ("reward_model.normalized_reward", lambda found: found - 0.1, "normalized_reward"),
    ("sampling_temperature", NAN, "sampling_temperature"),
    ("sampling_temperature", INFINITE, "sampling_temperature"),
    ("sampling_temperature", -1.0, "sampling_temperature"),
    ("sampling_temperature", 0.123, "sampling_temperature"),
    *(
        (field, None, field)
        for field in ("prompt", "prompt_ids", "response_logprobs", "sampling_temperature", "extra_info")
    ),
    *((f"extra_info.{field}", None, field) for field in ("index", "episode", "seat", "episodes_per_state")),
    ("extra_info.group_rows", 5, "group_rows"),
    ("reward_model.normalized_reward", None, "normalized_reward"),
    ("response_logprobs.0", None, "response_logprobs"),
    ("response_ids.0", None, "response_ids"),
]


def write_rows(path, changed, facts=b"{}", schema=SCHEMA):
    pq.write_table(pa.Table.from_pylist(changed, schema.with_metadata({METADATA_KEY: facts})), path)
    return path


def said_of(read):
    with pytest.raises(UserError) as refused:
        read()
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(("path", "value", "field"), ROWS)
def test_an_impossible_row_is_refused_by_training_and_by_the_check_with_its_number_and_field(
    tmp_path, path, value, field
):
    changed = deepcopy(rows())
    put({"row": changed[2]}, f"row.{path}" if path else "row", value)
    file = write_rows(tmp_path / "train.parquet", changed)
    said = {said_of(lambda: read_data([file], VOCABULARY)), said_of(lambda: check_parquet(file, "data/tiny_model"))}
    assert len(said) == 1, "both say the same"
    place, _, what = said.pop().partition(": field ")
    assert place.startswith(f"{file}: row ") and place[-1] in "23", "row 3 is the other seat of the episode"
    assert what.startswith(f"'{field}") or (what.startswith("'index'") and path == "extra_info")


@pytest.mark.parametrize("seat", [0, 1])
def test_whichever_seat_of_an_episode_has_the_lower_reward_it_is_refused_where_they_share_one(tmp_path, seat):
    changed = deepcopy(rows())
    for row, reward in ((changed[2 + seat], 0.4), (changed[3 - seat], 0.6)):
        row["reward_model"]["normalized_reward"] = reward
    file = write_rows(tmp_path / "train.parquet", changed)
    assert f"{file}: row 3: field 'normalized_reward'" in said_of(lambda: read_data([file]))


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("missing", "left"),
    [([2], 3), ([0, 1], 2), ([1, 3], 2), ([0, 1, 2], 1)],
    ids=["a seat", "an episode", "one seat throughout", "all but one row"],
)
def test_a_group_of_which_rows_are_missing_is_refused(tmp_path, missing, left):
    kept = [row for number, row in enumerate(rows()) if number not in missing]
    file = write_rows(tmp_path / "train.parquet", kept)
    said = {said_of(lambda: read_data([file])), said_of(lambda: check_parquet(file, "data/tiny_model"))}
    what = f"group 0 was written with 4 rows, but has {left}; convert the episodes again"
    assert said == {f"{file}: row 0: field 'group_rows': {what}"}


@pytest.mark.parametrize(("of", "named"), [(0, 1), (1, 1), (7, 7)])
def test_of_two_temperatures_the_first_row_with_another_than_row_0_is_named(tmp_path, of, named):
    changed = deepcopy(rows())
    changed[of]["sampling_temperature"] = 0.5
    file = write_rows(tmp_path / "train.parquet", changed)
    assert said_of(lambda: read_data([file])).startswith(f"{file}: row {named}: field 'sampling_temperature': ")


def test_one_row_alone_can_be_read(tmp_path):
    changed = deepcopy(rows()[:1])
    changed[0]["extra_info"]["group_rows"] = 1
    (found,) = read_rows(write_rows(tmp_path / "train.parquet", changed))
    assert len(found.index) == 1


def test_a_file_of_some_whole_groups_is_trained_on(tmp_path):
    assert len(read_data([write_rows(tmp_path / "train.parquet", rows()[4:])]).groups) == 1


def test_a_group_that_lost_episodes_and_seats_while_it_was_played_is_trained_on(tmp_path):
    played = [make_episode(0, 0), make_episode(0, 2, ends_after=1), make_episode(0, 3)]
    assert [len(episode_to_rows(episode, 4)) for episode in played] == [2, 1, 2]
    run_convert(write_episodes(tmp_path / "games.jsonl", played), tmp_path)
    (group,) = read_data([tmp_path / "train.parquet"]).groups
    assert len(group.rows) == 5


def test_a_log_prob_that_float32_probabilities_have_is_no_fault():
    least = float(np.log(np.finfo(np.float32).smallest_subnormal))
    for row in ({"response_logprobs": [least]}, {"response_logprobs": [-103.0]}):
        stream = {"prompt_ids": [1], "response_ids": [1], "response_mask": [1], "messages": [SAID], "seat": 0}
        assert records.Trajectory(**stream, **row, num_prompt_messages=1).fault() is None


def test_training_refuses_impossible_rows_before_it_writes_anything(tmp_path):
    changed = deepcopy(rows())
    changed[0]["response_logprobs"][0] = NAN
    file = write_rows(tmp_path / "train.parquet", changed)
    command = ["train", str(file), "--config", "tiny", "--model", "data/tiny_model", "--any-model", "--device", "cpu"]
    done = CliRunner().invoke(app, [*command, "--output", str(tmp_path / "out")])
    assert done.exit_code == 2 and "row 0: field 'response_logprobs': entry 0 is nan" in done.stderr, done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (b"{", "'selfplay' is not JSON"),
        (b"\xff", "'selfplay' is not JSON"),
        (b"[1]", "'selfplay' is no JSON object"),
        (b'{"top_p": "much"}', "top_p=much"),
        (b'{"schema_version": 99}', "written in version 99 of the format, but this program reads version 2"),
    ],
)
def test_damaged_metadata_is_one_line(tmp_path, facts, words):
    file = write_rows(tmp_path / "train.parquet", rows(), facts)
    assert words in said_of(lambda: read_data([file]))


@pytest.mark.parametrize("name", ["prompt", "prompt_ids", "response_logprobs", "sampling_temperature", "extra_info"])
def test_other_columns_are_one_line(tmp_path, name):
    table = pa.Table.from_pylist(rows(), SCHEMA)
    texts = table.set_column(SCHEMA.get_field_index(name), name, pa.array(["x"] * len(rows())))
    for number, changed in enumerate((table.drop_columns([name]), texts)):
        pq.write_table(changed, tmp_path / f"{number}.parquet")
        said = said_of(lambda file=tmp_path / f"{number}.parquet": read_data([file]))
        assert name in said or "extra_info" in said


@pytest.mark.parametrize("keep", [0, 3, 0.3, 0.6, 0.9, 0.999])
def test_a_cut_or_overwritten_file_is_one_line(tmp_path, keep):
    whole = write_rows(tmp_path / "whole.parquet", rows()).read_bytes()
    file = tmp_path / "train.parquet"
    file.write_bytes(whole[: keep if isinstance(keep, int) else int(keep * len(whole))])
    assert "not a readable parquet file" in said_of(lambda: read_data([file]))
    middle = int(0.4 * len(whole))
    file.write_bytes(whole[: middle - 200] + os.urandom(400) + whole[middle + 200 :])
    assert str(file) in said_of(lambda: read_data([file]))


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_only_files_are_read(tmp_path, kind):
    path = tmp_path / "path"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    for command in (
        ("convert", str(path)),
        ("convert", "--check", str(path)),
        ("show", str(path)),
        ("train", str(path), "--config", "tiny", "--device", "cpu", "--output", str(tmp_path / "out")),
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, (command, done.output, done.exception)
        assert f"{path}: a {kind}" in done.stderr, (command, done.stderr)


def test_a_file_where_a_folder_is_expected_is_one_line(tmp_path):
    games = write_episodes(tmp_path / "games.jsonl", [make_episode(0, 0), make_episode(0, 1)])
    for command in (
        ("train-online", "--games", str(games), "--config", "tiny", "--device", "cpu", "--output", str(tmp_path / "o")),
        ("convert", str(games), "--output", str(games)),
        ("games", "--config", "tiny", "--num-train", "1", "--num-test", "1", "--output", str(games)),
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2, (command, done.output, done.exception)
        assert f"{games}: is a file; give a folder" in done.stderr, (command, done.stderr)
