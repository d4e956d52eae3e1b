"""Whatever writes a file leaves a whole one: when two write at once, after a kill, and when the disk is full."""

import errno
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from factories import make_episode, make_episodes, write_episodes
from typer.testing import CliRunner

from selfplay_pipeline.cli import app
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import (
    FileChangedError,
    appending,
    filling,
    locked,
    replacing,
    replacing_folder,
    scratch_file,
    write_bytes,
    write_json,
    write_lines,
    write_text,
)
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.store import EpisodeStore
from selfplay_pipeline.iterate.folder import RunDirectory, StageRecord


def temporaries(folder):
    return [path.name for path in folder.rglob(".*") if "tmp" in path.name]


@pytest.mark.parametrize("command", ["convert", "game states"])
def test_a_folder_that_a_command_is_writing_is_refused_in_one_line(command, tmp_path):
    arguments = {
        "convert": (str(write_episodes(tmp_path / "games.jsonl", make_episodes(2, 2))),),
        "game states": ("--num-train", "1", "--num-test", "1", "--config", "tiny"),
    }
    lock = {"convert": ".convert.lock", "game states": ".games.lock"}[command]
    with locked(tmp_path / "out" / lock, "folder"):
        done = CliRunner().invoke(app, [*command.split(), *arguments[command], "--output", str(tmp_path / "out")])
    assert done.exit_code == 2 and "is in use by another process" in done.stderr
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_two_writers_of_one_file_each_have_a_temporary_file_of_their_own(tmp_path):
    path = tmp_path / "file"
    with replacing(path) as first, replacing(path) as second:
        assert first.exists() and second.exists() and first != second
        first.write_text("first" * 1000)
        second.write_text("second")
    (tmp_path / "other").touch()
    assert path.read_text() == "first" * 1000 and temporaries(tmp_path) == []
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode, "the rights that any new file has"


@pytest.mark.parametrize("write", [replacing, replacing_folder, filling])
def test_what_a_killed_process_left_is_removed_by_the_next_writer_and_what_a_living_one_writes_is_not(tmp_path, write):
    path = tmp_path / "target"
    killed = "import os, sys; from pathlib import Path; from selfplay_pipeline.core.files import *\n"
    killed += f"with {write.__name__}(Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", killed, str(path)])
    assert len(temporaries(tmp_path)) == 1
    with write(path) as living:
        assert temporaries(tmp_path) == [living.name], "what was left is gone"
        with write(path) as other:
            assert living.exists() and other.exists()


@pytest.mark.parametrize("write", [replacing, replacing_folder])
def test_a_failed_write_leaves_what_was_there_and_nothing_temporary(tmp_path, write):
    write_text(tmp_path / "file", "earlier")

    def fail():
        with write(tmp_path / ("file" if write is replacing else "folder")) as new:
            (new if write is replacing else new / "half").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (tmp_path / "file").read_text() == "earlier"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(("write", "left"), [(filling, ["a", "b"]), (replacing_folder, ["a"])])
def test_a_new_folder_takes_the_place_of_the_old_one_or_fills_it_as_told(tmp_path, write, left):
    write_text(tmp_path / "folder" / "b", "old")
    with write(tmp_path / "folder") as new:
        (new / "a").write_text("new")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == left
    assert temporaries(tmp_path) == []


MODEL_FILES = [*(f"a-{number}.safetensors" for number in range(9)), "config.json", "z.safetensors"]
"""So many that a folder hardly lists config.json last by itself."""


def into_a_folder(write):
    def fill(path, content):
        with write(path) as new:
            for name in MODEL_FILES:
                (new / name).write_text(content)

    return fill


WRITERS = {
    "write_text": write_text,
    "write_json": write_json,
    "write_bytes": lambda path, content: write_bytes(path, content.encode()),
    "write_lines": lambda path, content: write_lines(path, [content]),
    "replacing_folder": into_a_folder(replacing_folder),
    "filling": into_a_folder(filling),
}
"""Ways to put something whole at a path."""


@pytest.fixture
def disk_events(monkeypatch):
    """What was synced (inodes with their sizes then) and what was renamed: each file that moved, and what for."""
    synced, moved = {}, []
    sync, rename = os.fsync, os.replace

    def fsync(descriptor):
        found = os.fstat(descriptor)
        synced[found.st_ino] = found.st_size
        sync(descriptor)

    def replace(source, target):
        source = Path(source)
        files = [file for file in source.rglob("*") if file.is_file()] if source.is_dir() else [source]
        states = [file.stat() for file in files]
        whole = all(synced.get(state.st_ino) == state.st_size for state in states)
        rename(source, target)
        moved.append((Path(target), whole))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    return moved


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_all_that_gets_a_name_lies_on_the_disk_before(tmp_path, disk_events, write):
    path = tmp_path / "target"
    for content in ("first", "second, which is longer"):
        disk_events.clear()
        write(path, content)
        got = [whole for target, whole in disk_events if target == path or target.parent == path]
        assert got and all(got)


@pytest.mark.parametrize("write", [replacing_folder, filling])
def test_a_folder_that_was_cut_short_at_any_rename_is_a_whole_model_or_none(tmp_path, monkeypatch, write):
    rename, left = os.replace, 0

    def replace(source, target):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    for left_over in range(len(MODEL_FILES) + 1):
        path, left = tmp_path / f"{write.__name__}-{left_over}", left_over
        with suppress(KeyboardInterrupt):
            into_a_folder(write)(path, "weights")
        found = sorted(file.name for file in path.glob("*"))
        assert "config.json" not in found or found == MODEL_FILES
    assert found, "the last time nothing was cut short"


def test_the_old_folder_comes_back_if_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    path, rename, failed = tmp_path / "model", os.replace, []
    into_a_folder(replacing_folder)(path, "old")
    before = {file.name: file.read_bytes() for file in path.iterdir()}

    def replace(source, target):
        if Path(target) == path and not failed:
            failed.append(source)
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(UserError, match=rf"{path}: cannot be written \(Input/output error"):
        into_a_folder(replacing_folder)(path, "new")
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before and temporaries(tmp_path) == []


def test_a_file_that_is_gone_or_another_at_the_end_is_no_success(tmp_path):
    path = tmp_path / "lines"
    for change, what in ((path.unlink, "No such file"), (lambda: path.write_bytes(b"x"), "1 bytes in place of 2")):
        with pytest.raises(FileChangedError, match=rf"{path}: changed by another program .*\({what}"):  # noqa: PT012,SIM117
            with appending(path) as append:
                append(b"a\n")
                change()
        path.unlink(missing_ok=True)


def test_only_an_error_about_the_written_file_is_told_as_one(tmp_path):
    for write in (lambda: replacing(tmp_path / "file"), lambda: replacing_folder(tmp_path / "folder")):
        with pytest.raises(FileNotFoundError), write():
            (tmp_path / "another").read_bytes()
    with pytest.raises(UserError, match=r"/proc/file: cannot be written \("), scratch_file(Path("/proc/file")):
        pass


@pytest.mark.parametrize("write", [lambda path: write_text(path, "text"), lambda path: locked(path, "x").__enter__()])
def test_too_many_open_files_are_no_fault_of_the_file(tmp_path, write):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (tmp_path / "any").open("w") as lowest_free:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free.fileno(), hard))
            with pytest.raises(OSError) as refused:
                write(tmp_path / "file")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert refused.value.errno == errno.EMFILE


@contextmanager
def limited(folder, left):
    """No file may grow beyond a size, which a process can be told anywhere."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def filled(folder, left):
    """Another file fills a file system in memory."""
    filler, free = folder.parent / "filler", os.statvfs(folder)
    filler.write_bytes(bytes(max(0, free.f_bavail * free.f_frsize - left)))
    try:
        yield
    finally:
        filler.unlink()


@dataclass
class Disk:
    """A folder on a disk that can be full; then the system gives this reason."""

    folder: Path
    full_but_for: Callable[[Path, int], AbstractContextManager[None]]
    reason: str

    def full(self, left):
        return self.full_but_for(self.folder, left)


@pytest.fixture(params=[(limited, "File too large"), (filled, "No space left on device")], ids=["limited", "filled"])
def disk(request, tmp_path):
    full_but_for, reason = request.param
    if full_but_for is filled:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(tmp_path)], capture_output=True)
        if mounted.returncode:
            pytest.skip("this process may not mount a small disk")
    (tmp_path / "folder").mkdir()
    yield Disk(tmp_path / "folder", full_but_for, reason)
    if full_but_for is filled:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


COMMANDS = {
    "generate": "generate --player random --player sharing --num-episodes 8 --output games.jsonl "
    "--set generate.max_concurrency=1",
    "convert": "convert games.jsonl --output out",
    "evaluate": "evaluate random --num-states 12 --episodes 1 --output out",
    "game states": "game states --num-train 20 --num-test 2 --output out",
}


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_told_in_one_line_and_the_same_command_continues(disk, command, monkeypatch):
    monkeypatch.chdir(disk.folder)
    if command == "convert":
        write_episodes(Path("games.jsonl"), make_episodes(4, 2))
    arguments = [*COMMANDS[command].split(), "--config", "tiny"]
    with disk.full(4096):
        refused = CliRunner().invoke(app, arguments)
    said = refused.stderr.splitlines()[-1]
    assert refused.exit_code == 2 and said.startswith("selfplay: ") and disk.reason in said and "make room" in said
    assert temporaries(disk.folder) == []
    assert all(path.read_bytes().endswith(b"\n") for path in Path().rglob("*.jsonl") if path.stat().st_size)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    if command == "generate":
        assert len({episode.episode_id for episode in read_episodes(Path("games.jsonl"))}) == 8


def test_a_run_records_its_stage_once_there_is_room_again(disk):
    run = RunDirectory(disk.folder / "run")
    run.open(load_config("tiny", {}))
    with disk.full(0), pytest.raises(UserError, match=f"state.json: .*{disk.reason}"):
        run.finish(1, "generate", StageRecord(seconds=1.0, figures={}))
    assert not (run.path / "state.json").exists() and temporaries(disk.folder) == []
    run.finish(1, "generate", StageRecord(seconds=1.0, figures={}))
    assert json.loads((run.path / "state.json").read_text())["iterations"]["1"]


def test_a_line_that_did_not_fit_is_taken_back_so_that_the_next_is_not_glued_to_it(disk):
    store = EpisodeStore(disk.folder / "games.jsonl", {})
    with store.opened(lambda episode: None) as append:
        append(make_episode(0, 0))
        with disk.full(store.path.stat().st_size + 4096), pytest.raises(UserError, match=disk.reason):
            [append(make_episode(0, episode)) for episode in range(1, 10)]
        before = store.path.read_bytes()
        append(make_episode(1, 0))
    assert before.endswith(b"\n") and store.path.read_bytes().startswith(before)
    assert [(episode.group_index, episode.episode) for episode in read_episodes(store.path)][-1] == (1, 0)


@pytest.mark.long
def test_output_that_cannot_be_written_ends_in_one_line():
    command = [sys.executable, "-m", "selfplay_pipeline.cli", "config", "--config", "tiny"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    last = "selfplay: the system refused an operation: No space left on device; what was finished is kept"
    assert done.stderr.splitlines()[1:] == [last]


def test_a_disk_without_locks_is_named_with_what_to_do(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(UserError, match=r"\.lock: cannot be locked \(No locks available\); use a folder on a disk"):
        locked(tmp_path / ".lock", "folder").__enter__()


@pytest.mark.parametrize("write", [replacing, replacing_folder])
def test_a_folder_in_place_of_a_file_is_refused_and_kept_and_a_file_in_place_of_a_folder(write, tmp_path):
    path = tmp_path / "there"
    path.mkdir() if write is replacing else path.write_text("mine")
    what = "it is a folder; give a file" if write is replacing else "it is a file; give a folder"
    with pytest.raises(UserError, match=rf"{path}: cannot be written: {what}"), write(path):
        pass
    assert [*tmp_path.iterdir()] == [path]
