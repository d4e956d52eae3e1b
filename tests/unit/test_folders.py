"""A folder that one command has written into is refused by every other one, which leaves nothing there."""

import shutil
import sys
from functools import cache, partial
from pathlib import Path

import pytest
from factories import make_episodes, write_episodes
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.identity import differences, in_words
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, locked, write_json
from selfplay_pipeline.core.folders import OWNER, OWNERS, REPLACES, check_folder, own_folder, owner_of
from selfplay_pipeline.core.processes import spawn
from selfplay_pipeline.core.shipped import shipped
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.train.offline import claim


def selfplay(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


FEW = ("--num-states", 2)
SCRIPTED = ("--num-episodes", 2, "--episodes-per-state", 2, "--player", "random", "--player", "sharing")


@cache
def episodes() -> list:
    return list(make_episodes(2, 2))


def converted(folder):
    return write_episodes(folder.with_name(f"games of {folder.name}") / "games.jsonl", episodes())


WRITERS = {
    "generate": lambda folder: selfplay("generate", *SCRIPTED, "--output", folder / "games.jsonl"),
    "convert": lambda folder: selfplay("convert", converted(folder), "--output", folder),
    "train": lambda folder: selfplay("train", "--data", "/nowhere.parquet", "--output", folder),
    "imitate": lambda folder: selfplay("imitate", "/nowhere.jsonl", "--output", folder),
    "game states": lambda folder: selfplay("game", "states", "--num-train", 1, "--num-test", 1, "--output", folder),
    "train-online": lambda folder: selfplay("train-online", "--games", "/nowhere", "--output", folder),
    "iterate": lambda folder: selfplay("iterate", "--model", "data/nowhere", "--output", folder),
    "iterate --members": lambda folder: selfplay(
        "iterate", "--members", 3, "--model", "data/nowhere", "--output", folder
    ),
    "evaluate": lambda folder: selfplay("evaluate", "random", *FEW, "--episodes", 1, "--output", folder),
    "crossplay": lambda folder: selfplay("crossplay", "random", "sharing", *FEW, "--output", folder),
    "benchmark": lambda folder: selfplay(
        "benchmark", "random", "--games", "bargaining", "--states-per-task", 2, "--output", folder
    ),
    "model smollm2": lambda folder: selfplay("model", "smollm2", "--output", folder),
}
"""Every command that writes, with what is quick. Trainings and loops would be refused for another reason."""

MADE = {
    **{name: WRITERS[name] for name in ("generate", "convert", "game states", "evaluate", "crossplay", "benchmark")},
    "train": lambda folder: claim(TrainConfig(model="m", data=folder, output=folder), {}),
    "imitate": lambda folder: own_folder(folder, "imitate"),
    "train-online": lambda folder: claim(TrainConfig(model="m", data=folder, output=folder), {}, "train-online"),
    "iterate": lambda folder: RunDirectory(folder).open(load_config("tiny", {})),
    "iterate --members": lambda folder: own_folder(folder, "iterate --members"),
    "a model": lambda folder: write_json(folder / "config.json", {"model_type": "qwen2"}),
}
STAGES = {"generate", "convert", "train"}


def content(folder) -> dict:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
@pytest.mark.parametrize("maker", MADE)
def test_no_other_command_writes_into_a_folder(maker, tmp_path):
    folder = tmp_path / "folder"
    made = MADE[maker](folder)
    assert getattr(made, "exit_code", 0) == 0, made.output
    before = content(folder)
    assert before
    for command, write in WRITERS.items():
        if command == maker or {command, maker} <= STAGES:
            continue
        done = write(folder)
        assert done.exit_code == 2, (command, done.output, done.exception)
        assert f"{folder} holds " in done.stderr and f"`selfplay {command.split()[0]}" in done.stderr, done.stderr
        assert content(folder) == before, command


def test_files_that_only_have_such_a_name_make_a_folder_nobodys(tmp_path):
    for name in ("config.json", "manifest.json", "x.args.json"):
        write_json(tmp_path / name, [{"mine": 1}] if name == "manifest.json" else {"mine": 1})
    (tmp_path / "test.parquet").write_text("mine")
    (tmp_path / "y.args.json").write_text("no JSON")
    assert WRITERS["generate"](tmp_path).exit_code == 0
    assert not (tmp_path / OWNER).exists(), "a folder with files of the user stays the user's"


REPLACED = [(command, name) for command, names in REPLACES.items() for name in names]


@pytest.mark.parametrize(("command", "name"), REPLACED, ids=map(" ".join, REPLACED))
def test_no_command_replaces_a_file_of_others_that_only_has_the_name_of_one_of_its_own(command, name, tmp_path):
    (tmp_path / name).write_text('{"step": 1}\n')
    before = content(tmp_path)
    done = WRITERS[command](tmp_path)
    assert done.exit_code == 2 and f"{name} exists but `selfplay {command}` did not write it" in done.stderr
    assert content(tmp_path) == before


def test_a_conversion_beside_its_episodes_replaces_no_file_of_others(tmp_path):
    assert WRITERS["generate"](tmp_path).exit_code == 0
    (tmp_path / "train.parquet").write_text("mine")
    done = WRITERS["convert"](tmp_path)
    assert done.exit_code == 2 and (tmp_path / "train.parquet").read_text() == "mine"


def test_a_run_that_was_copied_without_the_name_of_its_owner_is_owned_again_once_it_goes_on(tmp_path):
    config, training = load_config("tiny", {}), TrainConfig(model="m", data=tmp_path, output=tmp_path / "training")
    for owner, folder, go_on in (
        ("iterate", tmp_path / "run", lambda: RunDirectory(tmp_path / "run").open(config)),
        ("train", training.output, lambda: claim(training, {})),
    ):
        go_on()
        (folder / "metrics.jsonl").write_text("")
        (folder / OWNER).unlink()
        check_folder(folder, owner)
        go_on()
        assert owner_of(folder) == owner


@pytest.mark.parametrize("command", ["generate", "convert", "game states", "evaluate", "crossplay"])
def test_the_same_command_goes_on_in_its_own_folder(command, tmp_path):
    assert [WRITERS[command](tmp_path / "folder").exit_code for _ in range(2)] == [0, 0]


def test_the_stages_of_an_iteration_share_a_folder(tmp_path):
    assert [WRITERS[command](tmp_path / "folder").exit_code for command in ("generate", "convert")] == [0, 0]
    assert "/nowhere.parquet: no such file" in WRITERS["train"](tmp_path / "folder").stderr


def test_other_arguments_are_refused_before_a_server_is_looked_for(tmp_path):
    games, evaluation, server = (
        tmp_path / "games.jsonl",
        tmp_path / "evaluation",
        ("--server-url", "http://127.0.0.1:9"),
    )
    assert selfplay("generate", *SCRIPTED, "--output", games).exit_code == 0
    write_json(evaluation / "sampled.args.json", {"first": "data/tiny_model", "episodes": 5})
    for command in (("generate", "--num-episodes", 2, "--output", games),
                    ("evaluate", "data/tiny_model", *FEW, "--output", evaluation)):  # fmt: skip
        done = selfplay(*command, *server)
        assert done.exit_code == 2 and "was begun with " in done.stderr


@pytest.mark.parametrize("command", ["report", "slime data"])
def test_a_file_is_written_over_only_by_the_command_that_made_it(command, tmp_path):
    games, made = write_episodes(tmp_path / "games.jsonl", episodes()), tmp_path / "made"
    call = {"report": ("report", games), "slime data": ("slime", "data", "--config", "tiny", "--num-states", 1)}[
        command
    ]
    assert [selfplay(*call, "--output", made).exit_code for _ in range(2)] == [0, 0]
    before = content(tmp_path)
    refused = selfplay(*call, "--output", games)
    assert (refused.exit_code, content(tmp_path)) == (2, before)
    assert f"games.jsonl holds something that `selfplay {command}` did not write" in refused.stderr


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((), ("--val-fraction", "0.5"), "convert.val_fraction = 0.0, now it is 0.5 (option --val-fraction)"),
        ((), ("--placebo",), "convert.placebo = False, now it is True (option --placebo)"),
        (("--placebo", "--seed", "1"), ("--placebo", "--seed", "2"), "seed = 1, now it is 2 (option --seed)"),
        ((), "other.jsonl", "games = 'games.jsonl', now it is 'other.jsonl'"),
    ],
)
def test_another_conversion_is_refused_and_the_same_one_takes_new_episodes(first, second, words, tmp_path):
    games = write_episodes(tmp_path / "games.jsonl", episodes())
    write_episodes(tmp_path / "other.jsonl", episodes())
    assert selfplay("convert", games, *first).exit_code == 0
    before = content(tmp_path)
    refused = selfplay("convert", *((tmp_path / second,) if isinstance(second, str) else (games, *second)))
    assert (refused.exit_code, content(tmp_path)) == (2, before)
    assert f"{tmp_path} was begun with {words}; give the earlier value, or another --output" in refused.stderr
    write_episodes(games, make_episodes(5, 2))
    again = selfplay("convert", games, *first)
    assert again.exit_code == 0 and " of 5 groups" in again.stdout


def test_a_conversion_that_failed_leaves_the_folder_to_another(tmp_path):
    games = write_episodes(tmp_path / "games.jsonl", episodes())
    games.write_text("{}\n" + games.read_text())
    assert selfplay("convert", games).exit_code == 2
    assert selfplay("convert", games, "--skip-bad", "--placebo").exit_code == 0


def test_a_moved_folder_is_converted_on(tmp_path):
    games = write_episodes(tmp_path / "one" / "games.jsonl", episodes())
    assert selfplay("convert", games).exit_code == 0
    (tmp_path / "one").rename(tmp_path / "two")
    assert selfplay("convert", tmp_path / "two" / "games.jsonl").exit_code == 0


def test_trainings_go_beside_what_they_are_trained_on(tmp_path, monkeypatch):
    """By default; each is refused before it begins, once its folder is known."""
    monkeypatch.chdir(tmp_path)
    games = write_episodes(Path("own") / "games.jsonl", episodes())
    for command, read, folder in (("train", "own/train.parquet", "training"), ("imitate", games, "imitation")):
        own_folder(Path("own") / folder, "iterate")
        said = selfplay(command, read).stderr
        assert f"own/{folder} holds what `selfplay iterate` wrote; `selfplay {command}` needs its own" in said
    own_folder(Path("data/matching_game_selfplay/training"), "iterate")
    assert "data/matching_game_selfplay/training holds what" in selfplay("train").stderr


def test_of_many_differences_a_message_lists_some():
    listed = in_words(differences({}, {f"key{number}": number for number in range(8)}))
    assert listed.startswith("key0 = not given, now it is 0; key1")
    assert listed.endswith("key4 = not given, now it is 4; 3 more")


@pytest.mark.parametrize("name", ["run[1]", "run*", "run?"])
def test_a_folder_whose_name_is_a_pattern_is_refused_where_a_server_or_verl_would_look_for_it(name, tmp_path):
    (folder := tmp_path / name).mkdir()
    shutil.copytree(shipped("data/tiny_model"), folder / "model")
    for check in (lambda: check_folder(folder, "iterate"), lambda: check_checkpoint(str(folder / "model"))):
        with pytest.raises(UserError, match="read as a pattern; rename the folder"):
            check()
    check_folder(folder, "evaluate")


# --- links in an output folder ------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path):
    """A folder with a file that stays as it is."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "notes").write_text("mine\n")
    yield folder
    assert [path.name for path in folder.rglob("*")] == ["notes"]
    assert (folder / "notes").read_text() == "mine\n"


@pytest.mark.parametrize("name", ["server.log", "iter_1/checkpoint", ".lock"])
@pytest.mark.parametrize("target", ["", "notes", "new"])
def test_a_run_folder_with_a_link_that_leads_out_is_refused(name, target, home, tmp_path):
    link = tmp_path / "run" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(home / target)
    done = selfplay("iterate", "--config", "tiny", "--output", tmp_path / "run")
    assert done.exit_code == 2 and done.stderr.startswith(f"selfplay: {link}: is a link that leads out of")
    assert [path for path in (tmp_path / "run").rglob("*") if not path.is_dir()] in ([link], [])


@pytest.mark.parametrize("command", sorted(OWNERS - {"listen"}))
def test_every_command_that_owns_its_folder_refuses_such_a_link(command, home, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "metrics.jsonl").symlink_to(home / "notes")
    done = WRITERS[command](tmp_path / "folder")
    assert done.exit_code == 2 and "metrics.jsonl: is a link that leads out of" in done.stderr


def test_the_folder_itself_may_be_a_link_and_links_may_stay_inside(home, tmp_path):
    folder, link = tmp_path / "disk", tmp_path / "folder"
    (folder / "wandb").mkdir(parents=True)
    link.symlink_to(folder)
    (folder / "latest").symlink_to("wandb")
    (folder / "wandb" / "debug-core.log").symlink_to(home / "notes")  # wandb makes such links
    assert WRITERS["evaluate"](link).exit_code == 0
    assert (folder / "evaluation.json").exists()


@pytest.mark.parametrize("name", ["games.jsonl", "games.jsonl.lock", "games.args.json", "games.summary.json"])
@pytest.mark.parametrize("target", ["notes", "new"])
def test_generate_writes_through_no_link(name, target, home, tmp_path):
    (tmp_path / name).symlink_to(home / target)
    done = selfplay("generate", *SCRIPTED, "--output", tmp_path / "games.jsonl")
    if done.exit_code:
        assert done.exit_code == 2 and str(tmp_path / name) in done.stderr
    else:
        assert not (tmp_path / name).is_symlink(), "a link that is replaced is not followed"


@pytest.mark.parametrize("name", ["train.parquet", "val.parquet", "convert_report.txt", ".convert.lock"])
def test_convert_writes_through_no_link(name, home, tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / name).symlink_to(home / "notes")
    done = WRITERS["convert"](tmp_path / "rows")
    assert (done.exit_code == 0) is not (tmp_path / "rows" / name).is_symlink()


def test_logs_and_what_is_appended_go_through_no_link(home, tmp_path):
    (tmp_path / "log").symlink_to(home / "notes")
    spawning = partial(spawn, [sys.executable, "-c", "print('lost')"])
    for write in (spawning, lambda path: appending(path).__enter__(), lambda path: locked(path, "log").__enter__()):
        with pytest.raises(UserError, match="log: is a link"):
            write(tmp_path / "log")
