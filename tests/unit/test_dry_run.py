"""With --dry-run trainings and loops say what they would do, and no command writes into what is not its own."""

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
from selfplay_pipeline.core.folders import own_folder
from selfplay_pipeline.games.matching.rules import MatchingConfig
from selfplay_pipeline.iterate.folder import RunDirectory, describe
from selfplay_pipeline.train.online_states import write_games

READING = {"show", "doctor", "game check", "config", "slime check"}
"""Commands that write nothing. Any other command must be among `WRITING`."""
INSTALLING = {"setup"}
"""Commands that write only into the environment."""
WRITING: dict[str, tuple[str, ...]] = {
    "generate": ("--player", "random", "--num-episodes", "8"),
    "play": (),
    "game humans": (),
    "convert": ("games.jsonl",),
    "train": ("rows/train.parquet",),
    "imitate": ("board.jsonl=2",),
    "game states": ("--num-train", "9", "--num-test", "3"),
    "train-online": ("states", "--steps", "3"),
    "iterate": ("--num-iterations", "2"),
    "iterate --members": ("--members", "2"),
    "evaluate": ("random", "--num-states", "2"),
    "crossplay": ("random", "sharing", "--num-states", "2"),
    "benchmark": ("random", "--games", "bargaining"),
    "listen": ("sharing", "--num-states", "2"),
    "game silence": ("--num-states", "9"),
    "report": ("games.jsonl",),
    "export": ("board.jsonl",),
    "slime questions": ("run",),
    "slime data": ("--num-states", "5"),
    "game new": ("mine",),
    "model tiny": (),
    "model smollm2": (),
    "model text": ("any",),
}
"""Arguments of each command that writes."""
DRY = {
    "train": "is trained on 23 rows in 3 groups of rows/train.parquet, to {output}; steps done",
    "train-online": "tiny_model plays itself and is trained in 3 steps of 8 states × 8 ep",
    "iterate": "iterations 1 to 2: generate, convert, train, evaluate left",
    "iterate --members": "member_2 (seed 1000): iterations 1 to 3: generate, convert, train, e",
}
"""Commands with --dry-run, and what they say that they would do."""
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
def test_a_folder_that_was_begun_otherwise_is_refused(tmp_path, command, changed):
    for arguments, code in ((command, 0), (f"{command} {changed}", 2)):
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


def begin(name: str, output: Path) -> Any:
    """Runs a command, dry if it can."""
    command = name.split(" --")[0]
    config = ("--config", "tiny") if command in CONFIGURED else ()
    model = ("--model", "data/tiny_model") if command in ("train", "imitate", "train-online", "convert") else ()
    dry = ("--dry-run",) if name in DRY else ()
    return selfplay(*command.split(), *WRITING[name], *config, *model, "--output", str(output), *dry)


def test_every_command_is_known_to_write_or_not():
    assert {*commands()} == READING | INSTALLING | {name.split(" --")[0] for name in WRITING}


def test_trainings_and_loops_alone_run_dry():
    for name in commands():
        assert ("--dry-run" in selfplay(*name.split(), "--help").stdout) == (name in DRY)


@pytest.mark.parametrize("name", DRY)
def test_a_dry_run_says_what_the_command_would_do_and_leaves_all_as_it_was(name, folder):
    before, output = content(folder), folder / "out"
    done = begin(name, output)
    assert done.returncode == 0, done.stderr
    assert DRY[name].format(output=output) in done.stdout
    assert content(folder) == before


FOREIGN = {name for name in WRITING if name not in ("slime questions", "game new")}
"""Commands that refuse a folder or a file of somebody else's."""


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_a_command_refuses_what_is_not_its_own(name, folder):
    output = folder / "out"
    if name in ("game humans", "game silence", "report", "slime data"):
        output.write_text("something else")
    else:
        own_folder(output, "iterate" if name != "iterate" else "evaluate")
    at = output / "games.jsonl" if name in ("generate", "play") else output
    before = content(folder)
    done = begin(name, at)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"{output} holds " in done.stderr and "give another --output" in done.stderr
    assert content(folder) == before


def test_a_dry_run_of_a_training_that_was_begun_with_other_options_is_refused(folder):
    write_json(folder / "out" / "trainer_state" / "training.json", {"learning_rate": 1.0, "model": "data/tiny_model"})
    done = begin("train", folder / "out")
    assert done.returncode == 2 and "out was begun with " in done.stderr


@pytest.mark.parametrize(
    "command",
    ["generate --player policy --player chat", "iterate --partner chat", "benchmark chat --games bargaining"],
)
def test_a_command_with_a_chat_model_asks_for_its_key_first(command, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = command.split() if command.startswith("benchmark") else [*command.split(), "--config", "tiny"]
    output = str(tmp_path / OUTPUT.get(words[0], "out"))
    dry = ("--dry-run",) if words[0] == "iterate" else ()
    done = selfplay(*words, *dry, "--output", output)
    assert (done.returncode, done.stdout) == (2, "") and "set the environment variable OPENAI_API_KEY" in done.stderr
    if dry:
        monkeypatch.setenv("OPENAI_API_KEY", "a-key-that-is-not-used")
        assert selfplay(*words, *dry, "--output", output).returncode == 0


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
    done = selfplay("evaluate", str(checkpoint), "--num-states", "2", "--compare", "/nowhere", *options)
    assert done.returncode == 2 and "/nowhere: no finished evaluation there" in done.stderr, done.stderr
    assert says is None or says in selfplay("crossplay", "sharing", str(checkpoint), "--states", "/nowhere").stderr
    assert (says or "") in done.stderr and ("was trained with" in done.stderr) == (says is not None), done.stderr
