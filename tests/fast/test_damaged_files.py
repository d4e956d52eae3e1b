"""Small files of a run that were torn, edited or replaced: whoever reads them says so in one line, and what to do."""

import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import selfplay
from factories import FINISHED, make_episodes, write_episodes

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import read_model, write_json
from selfplay_pipeline.core.small_files import read_json, read_object
from selfplay_pipeline.evaluate.run import EvaluationJob, check_comparable
from selfplay_pipeline.evaluate.states import held_out_states, read_states
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.generate.chat_cache import AnswerCache
from selfplay_pipeline.generate.records import read_lines as read_episode_lines
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord
from selfplay_pipeline.iterate.table import show_run
from selfplay_pipeline.report.sources import discover
from selfplay_pipeline.slime.data import DataJob, check_data, write_data
from selfplay_pipeline.train.offline import claim, read_lines


@dataclass
class Reader:
    """A file, and what reads it."""

    name: str
    read: Callable[[Path], Any]


def config() -> Config:
    return load_config("tiny", {})


def evaluation_job(folder: Path) -> EvaluationJob:
    return EvaluationJob("random", held_out_states(MatchingGame(config().game), 2), folder / "new", episodes=1)


def make_run(folder: Path) -> None:
    """A run of which one iteration is done, with an evaluation, a training and states beside it."""
    run = RunDirectory(folder)
    run.open(config())
    for stage, figures in FINISHED.items():
        run.finish(1, stage, StageRecord(seconds=1, figures=figures))
    write_json(folder / "best.json", {"iteration": 1, **FINISHED["evaluate"]})
    write_episodes(run.games(1), make_episodes(2, 1))
    write_json(run.iteration(1) / "selfplay_games.args.json", {"seed": 0})
    steps = "".join(json.dumps({"step": step, "loss": 0.1}) + "\n" for step in (1, 2))
    (run.iteration(1) / "metrics.jsonl").write_text(steps)
    job = evaluation_job(folder)
    evaluation = folder / "evaluation"
    write_json(evaluation / "scripted.args.json", job.pairing(config(), "scripted").task(config()).arguments)
    report = {"episodes": 2, "statuses": {"agreed": 2}, "figures": {}}
    write_episodes(evaluation / "scripted.jsonl", make_episodes(2, 1))
    write_json(
        evaluation / "evaluation.json",
        {
            "player": "random", "partner": "self", "states": "2", "num_states": 2, "temperature": 0.7, "mute": False,
            "modes": {"scripted": report}, "references": {"random": {"value": 0.5, "low": 0.4, "high": 0.6}},
        },
    )  # fmt: skip
    claim(training(folder), {"learning_rate": 0.1}, folder / "training" / "checkpoint")
    states = [json.dumps(state.to_dict()) + "\n" for state in job.states.states]
    (folder / "states.jsonl").write_text("".join(states))
    write_data(folder / "slime.jsonl", DataJob(config().game, num_states=2, seed=0))


def training(folder: Path) -> TrainConfig:
    return TrainConfig(model="m", output=folder / "training", data=folder / "train.parquet")


READERS = [
    Reader("manifest.json", lambda run: RunDirectory(run).check(config())),
    Reader("manifest.json", discover),
    Reader("state.json", lambda run: RunDirectory(run).load()),
    Reader("state.json", discover),
    Reader("best.json", lambda run: show_run(loaded(run))),
    Reader("iter_1/metrics.jsonl", discover),
    Reader("iter_1/metrics.jsonl", lambda run: read_lines(run / "iter_1" / "metrics.jsonl")),
    Reader(
        "iter_1/selfplay_games.args.json",
        lambda run: EpisodeStore(run / "iter_1" / "selfplay_games.jsonl", {"seed": 0}).check(),
    ),
    Reader("evaluation/evaluation.json", lambda run: discover(run / "evaluation")),
    Reader(
        "evaluation/scripted.args.json",
        lambda run: check_comparable(config(), evaluation_job(run), run / "evaluation"),
    ),
    Reader(
        "training/trainer_state/training.json",
        lambda run: claim(training(run), {"learning_rate": 0.1}, run / "training" / "checkpoint"),
    ),
    Reader("states.jsonl", lambda run: read_states(run / "states.jsonl", MatchingGame(config().game))),
    Reader("slime.jsonl", lambda run: check_data(run / "slime.jsonl")),
]


def loaded(run: Path) -> RunDirectory:
    directory = RunDirectory(run)
    directory.load()
    return directory


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder)
    return folder


def damages(text: str) -> dict[str, bytes]:
    """What may have become of a file; of one with lines the first line."""
    first, _, rest = text.partition("\n")
    return {
        "torn": text[: len(text) // 3].rstrip("0123456789").encode() + b"\n",
        "zeros": b"\0" * len(text) + b"\n",
        "binary": b"\xff\xfe\x00" + text.encode()[3:],
        "an array": b"[1, 2]\n",
        "a number": b"7\n",
        "null": b"null\n",
        "deep": b"[" * 100_000 + b"\n",
        "deep objects": b'{"a":' * 100_000 + b"\n",
        "a huge number": b'{"seed": ' + b"9" * 10_000 + b"}\n",
        "no keys": b"{}\n",
        "not JSON": f"x{first}\n{rest}".encode(),
    }


DAMAGES = list(damages("{}"))
OTHERS = {
    "iter_1/selfplay_games.args.json": "was begun with ",
    "training/trainer_state/training.json": "was begun with ",
}
"""What is said of files in which other keys mean that something else was done."""


@pytest.mark.parametrize("reader", READERS, ids=[f"{number}-{reader.name}" for number, reader in enumerate(READERS)])
def test_the_whole_file_is_read(whole, reader):
    reader.read(whole)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("reader", READERS, ids=[f"{number}-{reader.name}" for number, reader in enumerate(READERS)])
def test_a_damaged_file_is_named_in_one_line(whole, reader, damage):
    path = whole / reader.name
    before = path.read_bytes()
    path.write_bytes(damages(before.decode())[damage])
    try:
        with pytest.raises(UserError) as error:
            reader.read(whole)
    finally:
        path.write_bytes(before)
    others = damage == "no keys" and reader.name in OTHERS
    assert str(OTHERS[reader.name] if others else reader.name) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("stage", "figures"),
    [
        ("train", {"checkpoint": "c", "carried": False}),
        ("train", {"checkpoint": None, "carried": False, "steps": 1}),
        ("train", {"checkpoint": "c", "carried": False, "steps": "many"}),
        ("generate", {"mean_reward": "high"}),
        ("generate", FINISHED["generate"] | {"token_entropy": "low"}),
        ("evaluate", FINISHED["evaluate"] | {"held_out_reward": 0.5}),
        ("evaluate", FINISHED["evaluate"] | {"held_out_reward": {"value": "x", "low": 0, "high": 1}}),
    ],
)
def test_an_edited_figure_names_iteration_stage_and_field(tmp_path, stage, figures):
    run = RunDirectory(tmp_path)
    run.finish(3, stage, StageRecord(seconds=1, figures=figures))
    with pytest.raises(
        UserError, match=rf"state\.json: iteration 3, {stage}: field '.*without this entry it does {stage}"
    ):
        RunDirectory(tmp_path).load()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        ("NaN", "NaN is no number"), ("Infinity", "Infinity is no number"), ("-Infinity", "-Infinity is no number"),
        ("1e999", "a number is too large"), ("[" * 100_000, "nested too deep"),
    ],
    ids=range(5),
)  # fmt: skip
@pytest.mark.parametrize(
    "name", ["state.json", "best.json", "evaluation/evaluation.json", "iter_1/selfplay_games.args.json"]
)
def test_no_number_that_is_none_is_taken(whole, name, number, words):
    path = whole / name
    before = path.read_text()
    path.write_text(f'{{"iterations": {number}}}')
    try:
        with pytest.raises(UserError, match=rf"{name}: not JSON: {words}"):
            [reader.read(whole) for reader in READERS if reader.name == name]
    finally:
        path.write_text(before)


@pytest.mark.parametrize(
    "change",
    [
        {"table": [[1.5, 2], [3, 4]]}, {"table": [[-1, 2], [3, 4]]}, {"table": [[10**30, 2], [3, 4]]}, {"table": "x"},
        {"table": [[1, 2], [3]]}, {"mask1": [[2, 0, 0]] * 3}, {"mask2": [["a", 0, 0]] * 3}, {"scale1": float("nan")},
        {"scale2": float("inf")}, {"scale1": 0}, {"scale1": "1"}, {"scale1": True}, {"papers": 5}, {"reviewers": "abc"},
        {"papers": [1, 2, 3]}, {"best_assignment_reward": None}, {"best_assignment_reward": float("nan")},
        {"best_assignment_reward": "x"}, {"proposal_reward": -1}, {"proposal_reward": float("nan")},
        {"proposal_reward": 10**9}, {"proposal_reward": [1]},
    ],
)  # fmt: skip
def test_a_state_that_cannot_be_is_refused_with_its_line(whole, tmp_path, change):
    good = json.loads((whole / "states.jsonl").read_text().splitlines()[0])
    path = tmp_path / "states.jsonl"
    path.write_text(f"{json.dumps(good)}\n{json.dumps(good | change)}\n")
    with pytest.raises(UserError, match=r"states\.jsonl:2: "):
        read_states(path, MatchingGame(config().game))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("a\0b", "no name of a file"),
        ("/proc/self/mem", "/proc/self/mem: Input/output error"),
    ],
)
def test_a_path_that_cannot_be_read_is_named_with_what_writes_the_file(path, words):
    for read in (read_json, lambda path, hint: list(read_episode_lines(path, hint))):
        with pytest.raises(UserError, match=f"{words}; X writes it"):
            read(Path(path), "X writes it")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b'{"seconds": 1,\n"figures": x}', ":2: not JSON: Expecting value"),
        (b'{"seconds": 1,\n\n"\xff": 1}', ":3: not UTF-8 text"),
        (b'{"seconds": 1,\n\n\n"\0": 1}', r":4: holds the control character U\+0000"),
        (b"[1]", ": expected a JSON object"),
        (b'{"seconds": 1}', ": field 'figures' is missing"),
    ],
)
def test_a_mistake_in_a_small_file_names_the_line_or_the_key(tmp_path, data, words):
    path = tmp_path / "small.json"
    path.write_bytes(data)
    with pytest.raises(UserError, match=f"^{path}{words}.*; `X` writes this file"):
        read_object(path, "X", "seconds", "figures")


def test_a_field_that_does_not_fit_is_named(tmp_path):
    (tmp_path / "small.json").write_text('{"seconds": "long", "figures": {}}')
    with pytest.raises(UserError, match=f"^{tmp_path}/small.json: field 'seconds': .*; `X` writes this file"):
        read_model(tmp_path / "small.json", StageRecord, "X")


def test_a_damaged_cache_of_answers_is_named(tmp_path):
    file = tmp_path / "answers.sqlite3"
    for content in (b"x" * 4096, b"SQLite format 3\0" + b"\xff" * 4096):
        file.write_bytes(content)
        with pytest.raises(UserError, match=r"partner\.cache: .*answers\.sqlite3"):
            AnswerCache(file)
    file.unlink()
    AnswerCache(file)
    with sqlite3.connect(file) as database:
        database.execute("INSERT INTO answers VALUES ('k', X'ff00', 'stop')")
    with pytest.raises(UserError, match=r"partner\.cache: .*an answer is no text"):
        AnswerCache(file).get("k")
    with pytest.raises(UserError, match="a device, not a file"):
        AnswerCache(_device(tmp_path))


def _device(folder: Path) -> Path:
    link = folder / "device.sqlite3"
    link.symlink_to("/dev/zero")
    return link


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("show {folder}", "a folder; give a file of episodes, such as"),
        ("show {folder} --episode x", "a folder; give a file of episodes, such as"),
        ("evaluate random --states {folder}", "a folder, not a file; give a file of game states"),
        ("config --config {folder}", "a folder, not a file; give a YAML file to --config"),
        ("convert {folder}", "a folder, not a file; `selfplay generate` writes this file"),
        ("report {file}", "`selfplay generate` writes this file"),
        ("questions {file}", "no such folder; give the log directory"),
        ("train-online /nowhere", "No such file or directory; `selfplay games` writes it"),
        ("train-online {file}", "is a file; give a folder"),
    ],
)
def test_a_folder_for_a_file_and_the_reverse_are_told_apart(whole, command, words):
    done = selfplay(*command.format(folder=whole, file=whole / "state.json").split())
    assert done.returncode == 2 and words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_version_is_printed_and_what_comes_next_is_said(tmp_path):
    assert selfplay("--version").stdout.startswith("selfplay-pipeline ")
    games = write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))
    assert selfplay("convert", str(games)).stderr.endswith(f"train {tmp_path / 'train.parquet'}\n")
    scripted = ("--player", "random", "--player", "random", "--num-episodes", "2", "--episodes-per-state", "1")
    done = selfplay("generate", *scripted, "--output", str(tmp_path / "new.jsonl"))
    assert done.stderr.endswith(f"show {tmp_path / 'new.jsonl'}\n")


def test_figures_of_steps_are_read_from_a_file_alone(tmp_path):
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics\.jsonl: a pipe, not a file"):
        read_lines(tmp_path / "metrics.jsonl")
