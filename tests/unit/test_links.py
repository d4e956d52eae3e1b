"""No command writes through a link that lies in its output folder."""

import sys
from functools import partial

import pytest
from test_folders import SCRIPTED, WRITERS, selfplay

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import appending, locked
from selfplay_pipeline.core.folders import OWNERS
from selfplay_pipeline.core.processes import spawn


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
