"""With --dry-run every command that writes says what it would do, and writes nothing."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from command import selfplay
from factories import make_episodes, write_episodes

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.core.files import write_json
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.iterate.folder import RunDirectory, describe
from selfplay_pipeline.train.online_states import write_games
from selfplay_pipeline.warm_start import smollm2

READING = {"show", "doctor", "game check", "config", "slime check"}
"""Commands that write nothing. Any other command must be among `WRITING`."""
INSTALLING = {"setup"}
"""Commands that write only into the environment; `test_packaging.py` has their dry run."""
WRITING: dict[str, tuple[tuple[str, ...], str]] = {
    "generate": (("--player", "random", "--num-episodes", "8"), "random and random play 8 episodes"),
    "play": ((), "person and policy play episodes until you stop, from state 0 on, to {output}"),
    "game humans": ((), "134 episodes of people, "),
    "convert": (("games.jsonl",), "games.jsonl: 16 episodes, 4 groups to {output}/train.parquet (credit: episode)"),
    "convert --check": (("--check", "rows/train.parquet"), "rows/train.parquet is verified with the tokenizer of "),
    "train": (
        ("rows/train.parquet",),
        "is trained on 23 rows in 3 groups of rows/train.parquet, to {output}; steps done",
    ),
    "imitate": (("board.jsonl=2",), "data/tiny_model imitates board.jsonl: rows "),
    "game states": (
        ("--num-train", "9", "--num-test", "3"),
        "9 states to train on (seed 0) and 3 to validate on (seed 0), ",
    ),
    "train-online": (
        ("states", "--steps", "3"),
        "tiny_model plays itself and is trained in 3 steps of 8 states × 8 ep",
    ),
    "iterate": (("--num-iterations", "2"), "iterations 1 to 2: generate, convert, train, evaluate left"),
    "iterate --members": (
        ("--members", "2"),
        "member_2 (seed 1000): iterations 1 to 3: generate, convert, train, e",
    ),
    "evaluate": (("random", "--num-states", "2"), "random with itself on 2 held-out states (seed 0): 4 scripted episo"),
    "crossplay": (("random", "sharing", "--num-states", "2"), "random, sharing, each with each, on 2 held-out states"),
    "benchmark": (
        ("random", "--games", "bargaining"),
        "version 1 of the suite, tasks with states: bargaining-fixed (200), ",
    ),
    "listen": (("sharing", "--num-states", "2"), "sharing with itself on 2 held-out states (seed 0), then each decisi"),
    "game silence": (("--num-states", "9"), "lines of play without words on 9 states (seed 0) to {output}"),
    "report": (("games.jsonl",), "games.jsonl (episodes; files of episodes: 1) to page {output}"),
    "export": (("board.jsonl",), "rows 4, episodes 2, states 1 (board 3×3), to {output}"),
    "slime questions": (("run",), "run: 32 episodes, analysis.json, analysis.md and plots to {output}"),
    "slime data": (("--num-states", "5"), "states 0…4 of seed 0"),
    "game new": (("mine",), "to {output}/mine.py, {output}/test_mine.py"),
    "model tiny": ((), "a new model learns self-play (seed 0, "),
    "model smollm2": ((), "SmolLM2-135M-Instruct.Q4_1.gguf to {output}"),
}
"""Arguments of each command that writes, and what it says that it would do."""
CONFIGURED = {
    "generate",
    "convert",
    "train",
    "imitate",
    "game states",
    "train-online",
    "iterate",
    "listen",
    "evaluate",
    "export",
}


def commands(group: Any = None, above: str = "") -> Iterator[str]:
    """Returns the names of all commands that a help shows."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        elif not command.hidden:
            yield above + name


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        ("crossplay random sharing --num-states 2", "--episodes 2"),
        ("listen sharing --num-states 2", "--num-states 3"),
        ("evaluate sharing --num-states 2", "--num-states 3"),
    ],
)
def test_a_folder_that_was_begun_otherwise_is_refused_by_a_dry_run_too(tmp_path, command, changed):
    for arguments, code in ((command, 0), (f"{command} --dry-run", 0), (f"{command} {changed} --dry-run", 2)):
        done = selfplay(*arguments.split(), "--output", str(tmp_path / "out"))
        assert done.returncode == code, done.stderr
    assert "was begun with" in done.stderr and done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def readable(tmp_path_factory) -> Path:
    """A folder with something to read for each command."""
    folder = tmp_path_factory.mktemp("readable")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        patch.chdir(folder)
        write_readable(folder)
    return folder


def write_readable(folder: Path) -> None:
    board = load_config("tiny", {}).game
    assert isinstance(board, MatchingConfig)
    games = write_episodes(folder / "games.jsonl", list(make_episodes(4, 4)))
    write_episodes(folder / "board.jsonl", make_episodes(1, 2, config=board))
    run_convert(games, folder / "rows")
    write_games(folder / "states", board, num_train=24, num_test=2, seed=0, test_seed=0)
    RunDirectory(folder / "run").open(load_config("tiny", {}))
    (folder / "run" / "iter_1").mkdir()
    (folder / "run" / "iter_1" / "selfplay_games.jsonl").write_bytes(games.read_bytes())
    write_json(folder / "run" / "iter_1" / "selfplay_games.summary.json", {})


@pytest.fixture
def folder(readable, tmp_path, monkeypatch) -> Path:
    """A working directory with a copy of what each command reads."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    shutil.copytree(readable, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


OUTPUT = {"generate": "out.jsonl", "play": "out.jsonl"}
"""What commands write to that do not take just any name."""


def content(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def dry(name: str, output: Path, *further: str) -> Any:
    """Runs a command dry."""
    command = name.split(" --")[0]
    config = ("--config", "tiny") if command in CONFIGURED else ()
    model = ("--model", "data/tiny_model") if command in ("train", "imitate", "train-online", "convert") else ()
    to = () if name == "convert --check" else ("--output", str(output))
    return selfplay(*command.split(), *WRITING[name][0], *config, *model, *to, "--dry-run", *further)


def test_every_command_is_known_to_write_or_not():
    assert {*commands()} == READING | INSTALLING | {name.split(" --")[0] for name in WRITING}


@pytest.mark.parametrize("name", WRITING)
def test_a_command_that_writes_says_what_it_would_do_and_leaves_all_as_it_was(name, folder, monkeypatch):
    if name == "model smollm2":
        monkeypatch.setattr(smollm2, "distribution", lambda package: folder)
        monkeypatch.setattr(Path, "locate_file", Path.joinpath, raising=False)
    before = content(folder)
    output = folder / OUTPUT.get(name, "out")
    done = dry(name, output)
    assert done.returncode == 0, done.stderr
    assert WRITING[name][1].format(output=output) in done.stdout
    assert content(folder) == before


FOREIGN = {name for name in WRITING if name not in ("slime questions", "convert --check", "game new")}
"""Commands that refuse a folder or a file of somebody else's."""


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_dry_run_is_refused_where_the_run_would_be(name, folder):
    output = folder / "out"
    if name in ("game humans", "game silence", "report", "slime data"):
        output.write_text("something else")
    else:
        maker = {"gpu": 1, "packages": {}} if name != "iterate" else {"model_type": "qwen2"}
        write_json(output / ("config.json" if name == "iterate" else "manifest.json"), maker)
    at = output / "games.jsonl" if name in ("generate", "play") else output
    before = content(folder)
    done = dry(name, at)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"{output} holds " in done.stderr and "give another --output" in done.stderr
    assert content(folder) == before


def test_a_dry_run_of_a_training_that_was_begun_with_other_options_is_refused(folder):
    write_json(folder / "out" / "trainer_state" / "training.json", {"learning_rate": 1.0, "model": "data/tiny_model"})
    done = dry("train", folder / "out")
    assert done.returncode == 2 and "out was begun with " in done.stderr


@pytest.mark.parametrize(
    "command",
    ["generate --player policy --player chat", "iterate --partner chat", "benchmark chat --games bargaining"],
)
def test_a_dry_run_with_a_chat_model_asks_for_its_key(command, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = command.split() if command.startswith("benchmark") else [*command.split(), "--config", "tiny"]
    output = str(tmp_path / OUTPUT.get(words[0], "out"))
    done = selfplay(*words, "--dry-run", "--output", output)
    assert (done.returncode, done.stdout) == (2, "") and "set the environment variable OPENAI_API_KEY" in done.stderr
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-that-is-not-used")
    assert selfplay(*words, "--dry-run", "--output", output).returncode == 0


def test_a_dry_run_of_convert_refuses_what_convert_refuses(folder):
    line = json.loads((folder / "games.jsonl").read_text().splitlines()[0])
    (folder / "games.jsonl").write_text(json.dumps(line | {"turns": 5}) + "\n")
    done = dry("convert", folder / "out")
    assert done.returncode == 2 and "games.jsonl:1: field 'turns'" in done.stderr
    again = dry("convert", folder / "out", "--skip-bad")
    assert again.returncode == 2 and "--skip-bad left out all 1 episodes" in again.stderr


@pytest.mark.parametrize(
    ("trained", "options", "says"),
    [
        ("tiny", (), "was trained with game.hard_factor = 1.25, now it is 0.0; "),
        (
            "tiny_bargaining",
            (),
            "was trained with game.name = 'bargaining', now it is 'matching'; give the --config of",
        ),
        ("tiny", ("--config", "tiny_honest"), None),
        (
            "tiny_honest",
            (
                "--set",
                "game.mute=true",
            ),
            None,
        ),
        (None, (), None),
    ],
)
def test_a_checkpoint_of_other_rules_than_the_default_ones_is_named(tmp_path, monkeypatch, trained, options, says):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    checkpoint = tmp_path / "run" / "iter_1" / "checkpoint"
    shutil.copytree("data/tiny_honest_model", checkpoint)
    if trained:
        write_json(tmp_path / "run" / "manifest.json", describe(load_config(trained, {}).model_dump(mode="json")))
    done = selfplay("evaluate", str(checkpoint), "--num-states", "2", "--dry-run", *options)
    assert done.returncode == 0, done.stderr
    assert says is None or says in selfplay("crossplay", "sharing", str(checkpoint), "--dry-run").stderr
    assert (says or "") in done.stderr and ("was trained with" in done.stderr) == (says is not None), done.stderr
