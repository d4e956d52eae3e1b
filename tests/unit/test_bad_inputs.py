"""Bad input ends a command with exit code 2 and one line that names the place, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sqlite3
import stat
import types
from collections.abc import Callable, Iterator
from contextlib import chdir
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bad_inputs import CASES, GOOD, INFINITE, NAN, Bad, put
from command import selfplay
from factories import FINISHED, TINY, make_episode, make_episodes, write_episodes
from pydantic import BaseModel, ValidationError
from quick import long_but
from training_rows import rows_of

from selfplay_pipeline.cli.show.iterate import show_run
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert import run as conversion
from selfplay_pipeline.convert.parquet import read_rows
from selfplay_pipeline.convert.rows import METADATA_KEY, SCHEMA, episode_to_rows
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.core.small_files import read_json
from selfplay_pipeline.evaluate.states import held_out_states
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate import read_records
from selfplay_pipeline.generate.chat_cache import AnswerCache
from selfplay_pipeline.generate.read_records import parse_episode
from selfplay_pipeline.generate.read_records import read_lines as read_episode_lines
from selfplay_pipeline.generate.records import Trajectory
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.slime.questions.analysis import records_of
from selfplay_pipeline.slime.questions.records import log_step
from selfplay_pipeline.train.groups import read_data
from selfplay_pipeline.train.offline import claim, read_lines

ROOT = Path(__file__).parents[2]
PROMPTS = ROOT / "selfplay_pipeline" / "games" / "matching" / "prompts" / "compact"
CLOSED = "http://127.0.0.1:9/v1"
ERROR = re.compile(r"^(?:selfplay|Error): ", re.MULTILINE)
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run(command: str) -> None:
    done = selfplay(*shlex.split(command))
    assert done.returncode == 0, (command, done.stderr)


def make_good(folder: Path) -> None:
    """Make the good files by the commands that write them."""
    (folder / "data").mkdir()
    (folder / "data" / "tiny_model").symlink_to(ROOT / TINY)
    (folder / "model").symlink_to(ROOT / TINY)
    episodes = list(make_episodes(2, 2, chat=ChatTokenizer.load(TINY)))
    games = write_episodes(Path("games.jsonl"), episodes)
    run_convert(games, Path())
    make_run(Path("run"))
    config = load_config("tiny", {})
    states = held_out_states(MatchingGame(config.game), 2).states
    write_lines(Path("states.jsonl"), [state.to_dict() for state in states])
    training = TrainConfig(model=TINY, output=Path("training"), data=Path("train.parquet"))
    claim(training, {"learning_rate": 0.1})
    write_lines(Path("training/metrics.jsonl"), [{"step": 1}])
    run("generate --player random --player random --num-episodes 8 --output played/games.jsonl")
    run("evaluate random --num-states 2 --episodes 1 --output evaluation")
    run("game states --config tiny --num-train 8 --num-test 2 --output states")
    Path("log").mkdir()
    log_step(Path("log"), 0, [row for episode in episodes for row in records_of(episode, 0)])
    shutil.copytree(PROMPTS, "prompts")
    Path("prompts.yaml").write_text("game: {prompts: prompts}\n")
    Path("chat.yaml").write_text(f"partner: {{base_url: '{CLOSED}', cache: answers.sqlite3}}\n")
    AnswerCache(Path("answers.sqlite3")).close()  # a log that stays would repair the file that a case spoils


def write_lines(path: Path, rows: list[object]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_run(folder: Path) -> None:
    run = RunDirectory(folder)
    run.open(load_config("tiny", {}))
    for stage, figures in FINISHED.items():
        run.finish(1, stage, StageRecord(seconds=1, figures=figures))
    write_json(folder / "best.json", {"iteration": 1, "checkpoint": "c", **FINISHED["evaluate"]["figures"]})
    write_episodes(run.games(1), make_episodes(2, 1))
    write_lines(run.iteration(1) / "metrics.jsonl", [{"step": step, "loss": 0.1} for step in (1, 2)])


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    with chdir(folder):
        make_good(folder)
    assert all((folder / name).exists() for name in GOOD)
    return folder


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Kind and content of all files, without locks, which stay for later commands."""
    found = {}
    for path in folder.rglob("*"):
        mode = path.lstat().st_mode
        if path.suffix != ".lock" and path.name != ".lock":
            content = hashlib.sha256(path.read_bytes()).digest() if stat.S_ISREG(mode) else b""
            found[str(path.relative_to(folder))] = (mode, content)
    return found


QUICK = [bad for bad in CASES if bad.name != "unknown key of verl's"]
"""Cases that do not read verl's configuration."""


@pytest.mark.parametrize("bad", long_but(QUICK, CASES), ids=lambda bad: bad.name)
def test_a_bad_input_is_refused_in_one_line_that_names_the_place(good, tmp_path, monkeypatch, bad: Bad):
    folder = tmp_path / "case"
    shutil.copytree(good, folder, symlinks=True)
    if any(name.startswith("model/") for name in bad.files):
        (folder / "model").unlink()
        shutil.copytree(ROOT / TINY, folder / "model")
    for name, spoil in bad.files.items():
        file = folder / name
        if callable(spoil):
            spoil(file)
        else:
            file.write_bytes(spoil.encode() if isinstance(spoil, str) else spoil)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    before = listing(folder)
    lines = {refusal(shlex.split(command)) for command in bad.commands}
    (line,) = lines
    assert re.search(bad.says, line), line
    assert listing(folder) == before


def refusal(command: list[str]) -> str:
    """The line with which a command refuses its input."""
    done = selfplay(*command)
    printed = done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in printed, printed
    assert not CONTROL.search(printed)
    (line,) = [line for line in done.stderr.splitlines() if ERROR.match(line)]
    assert done.stderr.endswith(f"{line}\n") and len(line) < 2000, done.stderr
    return ERROR.sub("", line)


# Files that no quick command reads, and the limits of what is allowed.


def said_of(read: Callable[[], object]) -> str:
    """The one line with which a reader refuses a file."""
    with pytest.raises(UserError) as refused:
        read()
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_files_that_no_quick_command_reads_are_refused_in_one_line(tmp_path):
    make_run(tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    run.load()
    (run.path / "best.json").write_text("{}")
    assert "best.json: field 'iteration'" in said_of(lambda: show_run(run))
    for text in ("{x", "[1]", '{"loss": 1}', "[" * 50_000):
        (tmp_path / "metrics.jsonl").write_text(f"{text}\n{{}}\n")
        said = said_of(lambda: read_lines(tmp_path / "metrics.jsonl"))
        assert "metrics.jsonl:1: damaged" in said and "delete this line" in said
    AnswerCache(tmp_path / "answers.sqlite3")
    with sqlite3.connect(tmp_path / "answers.sqlite3") as database:
        database.execute("INSERT INTO answers VALUES ('k', X'ff00', 'stop')")
    assert "an answer is not text" in said_of(lambda: AnswerCache(tmp_path / "answers.sqlite3").get("k"))
    assert "/proc/self/mem: Input/output error" in said_of(lambda: list(read_episode_lines(Path("/proc/self/mem"))))
    assert "no name of a file" in said_of(lambda: read_json(Path("a\0b")))


def numbers_of(section: type[BaseModel], path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """All keys of the configuration that take a number, or a list of numbers."""
    found = []
    for name, field in section.model_fields.items():
        kinds = field.annotation
        if isinstance(kinds, type) and issubclass(kinds, BaseModel):
            found += numbers_of(kinds, (*path, name))
        elif {int, float} & _parts(kinds):
            found.append((*path, name))
    return found


def _parts(annotation: Any) -> set[Any]:
    parts = [part for part in get_args(annotation) if isinstance(part, type | types.UnionType) or get_args(part)]
    return {annotation}.union(*map(_parts, parts))


def test_no_key_takes_an_impossible_number():
    for key in numbers_of(Config):
        for value in (NAN, INFINITE, -INFINITE, "nan", "-inf", True, 10**400, 2**31, 1e300, [1], {}, "x"):
            data: Any = [value] if key == ("imitate", "seats") else value  # a list of numbers
            for name in reversed(key):
                data = {name: data}
            with pytest.raises(ValidationError):
                Config.model_validate(data)


@cache
def episodes() -> list[dict[str, Any]]:
    return [json.loads(episode.model_dump_json()) for episode in make_episodes(2, 2)]


@cache
def rows() -> list[dict[str, Any]]:
    found = [row for episode in make_episodes(2, 2) for row in rows_of(episode, 2)]
    for row in found:
        row["extra_info"]["group_rows"] = 4
    return found


def write_rows(path: Path, changed: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(changed, SCHEMA.with_metadata({METADATA_KEY: b"{}"})), path)
    return path


def leaves(data: Any, path: str = "") -> Iterator[str]:
    """Dotted paths of all values but objects and lists; of each list the first element alone."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}")
    elif isinstance(data, list) and data:
        yield from leaves(data[0], f"{path}.0")
    else:
        yield path[1:]


def test_no_field_of_an_episode_takes_another_type():
    for path in leaves(episodes()[1]):
        if path.startswith("state."):
            continue  # the game's own
        changed = put(deepcopy(episodes()[1]), path, {"much": 1})
        with pytest.raises(ValueError, match=re.escape(re.sub(r"\.\d+.*", "", path))):
            parse_episode(json.dumps(changed).encode())


NUMBERS = [
    *((f"trajectories.0.{name}.0", value) for name in ("prompt_ids", "response_ids") for value in (-1, 2**31)),
    *(("trajectories.0.response_logprobs.0", value) for value in (NAN, INFINITE, -INFINITE, -1e300, None)),
    ("trajectories.0.response_logprobs", lambda found: [*found, -1.0]), ("trajectories.0.response_mask.0", -1),
    *((f"trajectories.0.{name}", value) for name, value in (("seat", -1), ("num_prompt_messages", 0))),
    *((name, value) for name in ("group_index", "episode") for value in (-1, 2**31, 2**70)),
    *(("policy.temperature", value) for value in (NAN, INFINITE)), ("policy.max_new_tokens", -1),
    *(("outcome.normalized_reward", value) for value in (NAN, 1.5)), ("outcome.score", NAN), ("outcome.best", 0),
    ("outcome.num_turns", -1), ("players", []), ("state.best_assignment_reward", NAN), ("state.scale1", INFINITE),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), NUMBERS)
def test_no_field_of_an_episode_takes_an_impossible_number(path, value):
    changed = put(deepcopy(episodes()[1]), path, value)
    with pytest.raises(ValueError, match=path.split(".")[-2 if path[-1] == "0" else -1] + "|state"):
        parse_episode(json.dumps(changed).encode())


def test_quotes_colons_and_backslashes_in_texts_are_no_keys():
    episode = deepcopy(episodes()[1])
    for text in ('":', '" :', '\\":', '{"episode": 1, "episode": 2}', "\\\\", 'a"\t:'):
        episode["trajectories"][0]["messages"].append({"role": "user", "content": text})
        spaced, dense = (json.dumps(episode, separators=how).encode() for how in ((", ", ": "), (",", ":")))
        assert parse_episode(spaced) == parse_episode(dense)


def test_a_line_beyond_the_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(read_records, "MAX_LINE", 1 << 20)
    path = tmp_path / "games.jsonl"
    path.write_bytes(b"{}\n" + b" " * (1 << 20) + b"x\n")
    assert "games.jsonl:2: longer than 1 MiB" in said_of(lambda: list(read_episode_lines(path)))


def test_a_token_is_checked_against_the_vocabulary_at_conversion(tmp_path, monkeypatch):
    (tmp_path / TINY).mkdir(parents=True)
    (tmp_path / TINY / "config.json").write_text('{"vocab_size": 400}')
    monkeypatch.chdir(tmp_path)
    conversion._vocabulary.cache_clear()
    for path in ("prompt_ids.1", "response_ids.0"):
        changed = deepcopy(episodes())
        put(changed[1], f"trajectories.0.{path}", 400)
        write_lines(tmp_path / "games.jsonl", changed)
        said = said_of(lambda: run_convert(tmp_path / "games.jsonl", tmp_path / "out"))
        assert f"games.jsonl:2: field 'trajectories.0.{path.split('.')[0]}'" in said
        assert not (tmp_path / "out").exists()
    conversion._vocabulary.cache_clear()


@pytest.mark.parametrize("seat", [0, 1])
def test_whichever_seat_of_an_episode_has_the_lower_reward_it_is_refused_where_they_share_one(tmp_path, seat):
    changed = deepcopy(rows())
    for row, reward in ((changed[2 + seat], 0.4), (changed[3 - seat], 0.6)):
        row["reward_model"]["normalized_reward"] = reward
    file = write_rows(tmp_path / "train.parquet", changed)
    assert f"{file}: row 3: field 'normalized_reward'" in said_of(lambda: read_data([file]))


@pytest.mark.parametrize(
    ("missing", "left"),
    [([2], 3), ([0, 1], 2), ([1, 3], 2), ([0, 1, 2], 1)],
    ids=["a seat", "an episode", "one seat throughout", "all but one row"],
)
def test_a_group_of_which_rows_are_missing_is_refused(tmp_path, missing, left):
    file = write_rows(tmp_path / "train.parquet", [row for at, row in enumerate(rows()) if at not in missing])
    said = said_of(lambda: read_data([file]))
    assert f"{file}: row 0: field 'group_rows': group 0 was written with 4 rows, but has {left}" in said


@pytest.mark.parametrize(("of", "named"), [(0, 1), (1, 1), (7, 7)])
def test_of_two_temperatures_the_first_row_with_another_than_row_0_is_named(tmp_path, of, named):
    changed = deepcopy(rows())
    changed[of]["sampling_temperature"] = 0.5
    file = write_rows(tmp_path / "train.parquet", changed)
    assert said_of(lambda: read_data([file])).startswith(f"{file}: row {named}: field 'sampling_temperature': ")


def test_one_row_alone_can_be_read_and_whole_groups_are_trained_on(tmp_path):
    alone = deepcopy(rows()[:1])
    alone[0]["extra_info"]["group_rows"] = 1
    (found,) = read_rows(write_rows(tmp_path / "train.parquet", alone))
    assert len(found.index) == 1
    assert len(read_data([write_rows(tmp_path / "train.parquet", rows()[4:])]).groups) == 1


def test_a_group_that_lost_episodes_and_seats_while_it_was_played_is_trained_on(tmp_path):
    played = [make_episode(0, 0), make_episode(0, 2, ends_after=1), make_episode(0, 3)]
    assert [len(episode_to_rows(episode)) for episode in played] == [2, 1, 2]
    run_convert(write_episodes(tmp_path / "games.jsonl", played), tmp_path)
    (group,) = read_data([tmp_path / "train.parquet"]).groups
    assert len(group.rows) == 5


def test_a_log_prob_that_float32_probabilities_have_is_allowed():
    least = float(np.log(np.finfo(np.float32).smallest_subnormal))
    said = {"role": "user", "content": "hello"}
    for log_prob in (least, -103.0):
        stream = {"prompt_ids": [1], "response_ids": [1], "response_mask": [1], "messages": [said], "seat": 0}
        assert Trajectory(**stream, response_logprobs=[log_prob], num_prompt_messages=1).fault() is None


def test_an_overwritten_parquet_file_is_one_line(tmp_path):
    file = write_rows(tmp_path / "train.parquet", rows())
    whole = file.read_bytes()
    middle = int(0.4 * len(whole))
    file.write_bytes(whole[: middle - 200] + bytes(range(256)) + bytes(144) + whole[middle + 200 :])
    assert str(file) in said_of(lambda: read_data([file]))
