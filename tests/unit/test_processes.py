"""Children never outlive the driver, with all their descendants."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from quick import long_but

from selfplay_pipeline.core.processes import Child, own_temporary_files, remove_abandoned, scratch_folder, spawn

DAEMON = "import subprocess,sys,time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep({seconds})"


def sleepers(mark: str) -> int:
    """Number of processes with the mark in their environment."""
    count = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            count += mark.encode() in (entry / "environ").read_bytes()
    return count


def wait_until_none(mark: str) -> None:
    deadline = time.monotonic() + 60
    while sleepers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers(mark) == 0


def started(tmp_path: Path, seconds: float) -> tuple[Child, str]:
    """A child with a daemon, and the mark that both and the supervisor have in their environment."""
    mark = f"mark-{os.urandom(8).hex()}"
    child = spawn([sys.executable, "-c", DAEMON.format(seconds=seconds)], tmp_path / "log", {"SELFPLAY_MARK": mark})
    while sleepers(mark) < 3 and child.poll() is None:
        time.sleep(0.02)
    return child, mark


@pytest.mark.parametrize("ends", long_but({"stopped"}, ["by itself", "stopped", "supervisor stopped by a signal"]))
def test_a_daemon_of_the_child_ends_with_it(tmp_path, ends):
    child, mark = started(tmp_path, 0.5 if ends == "by itself" else 300)
    if ends == "by itself":
        assert child.wait(60) == 0
    else:
        if ends != "stopped":
            os.kill(child.pid, signal.SIGSTOP)
        child.stop()
        assert child.poll() != -signal.SIGKILL, "its supervisor ended by itself, and with it all others"
    wait_until_none(mark)


def test_a_child_has_an_exit_code_last_lines_and_the_programs_of_its_python_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code = "import shutil; print('one'); print(shutil.which('pytest')); raise SystemExit(7)"
    child = spawn([sys.executable, "-c", code], tmp_path / "log")
    assert child.wait(60) == 7
    assert child.last_lines(1) == str(Path(sys.executable).parent / "pytest")


WRITER = """
import os, sys, tempfile, time, multiprocessing; from selfplay_pipeline.core.processes import name_semaphores
name_semaphores(); lock = multiprocessing.get_context('spawn').Lock(); handle, path = tempfile.mkstemp()
print(os.environ['SELFPLAY_SCRATCH'], path, flush=True); time.sleep(300)
"""
"""Leaves a file and, when it is killed, a semaphore in shared memory; says where its folder and the file are."""


def wrote(log: Path) -> tuple[Path, Path]:
    """The folder and the file of the writer."""
    while not log.exists() or not log.read_text().endswith("\n"):
        time.sleep(0.01)
    folder, file = log.read_text().split()
    return Path(folder), Path(file)


def has_ended(process: psutil.Process) -> bool:
    """Also where whoever inherited it has not looked at its exit code yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def semaphores(folder: Path) -> list[Path]:
    return list(Path("/dev/shm").glob(f"*{folder.name}*"))


@pytest.mark.parametrize("killed", [False, True])
def test_what_a_child_writes_into_the_temporary_folder_is_its_own_and_goes_with_it(tmp_path, killed):
    """Also where its supervisor was killed before."""
    child = spawn([sys.executable, "-c", WRITER], tmp_path / "log")
    folder, file = wrote(tmp_path / "log")
    assert file.parent == folder
    assert stat.filemode(folder.stat().st_mode) == "drwx------"
    assert len(semaphores(folder)) == 1
    if killed:
        os.kill(child.pid, signal.SIGKILL)
        child.wait(60)
        assert folder.exists()
    child.stop()
    assert not folder.exists() and not semaphores(folder)


@pytest.mark.parametrize("titled", [False, True])
def test_so_are_daemons_that_a_killed_supervisor_could_not_end(tmp_path, titled):
    """Also one that gives itself a title, as Ray's do, which else overwrites its environment."""
    title = "import setproctitle; setproctitle.setproctitle('ray::Agent'); " if titled else ""
    daemon = f"{title}import time; print('up', flush=True); time.sleep(300)"
    starts = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {daemon!r}], start_new_session=True)"
    child = spawn([sys.executable, "-c", starts], tmp_path / "log")
    while "up" not in (tmp_path / "log").read_text():
        time.sleep(0.01)
    daemons = [process for process in psutil.Process(child.pid).children(recursive=True) if process.ppid() != child.pid]
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    assert len(daemons) == 1 and daemons[0].is_running()
    child.stop()
    assert all(map(has_ended, daemons))


KEEP = """
import sys, time; from pathlib import Path; from selfplay_pipeline.core.processes import scratch_folder
context = scratch_folder(Path(sys.argv[1])); print(context.__enter__(), flush=True); time.sleep(300)
"""


def test_a_folder_is_abandoned_once_its_process_is_gone_and_not_before(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", KEEP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    with scratch_folder(tmp_path) as other:
        assert folder.is_dir() and other.is_dir()
        process.kill()
        process.wait()
        remove_abandoned(tmp_path)
        assert not folder.exists() and other.is_dir()
    assert list(tmp_path.iterdir()) == []


def test_temporary_files_of_a_command_are_private_and_go_with_it_and_those_of_others_stay(tmp_path, monkeypatch):
    (tmp_path / "selfplay-of-something-else").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "selfplay-run-link").symlink_to(tmp_path / "elsewhere")
    others = {*tmp_path.iterdir()}
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with own_temporary_files():
        Path(tempfile.mkdtemp(), "file").touch()
        (folder,) = {*tmp_path.iterdir()} - others
        assert stat.filemode(folder.stat().st_mode) == "drwx------"
    remove_abandoned(tmp_path)
    assert {*tmp_path.iterdir()} == others


@pytest.mark.parametrize(("limits", "refused"), [((64, 4096), False), ((64, 64), True)])
def test_too_few_open_files_are_raised_or_refused_before_the_child_starts(tmp_path, limits, refused):
    script = (
        "import resource, sys; from pathlib import Path; from selfplay_pipeline.core.processes import spawn;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, {limits});"
        "child = spawn(['sh', '-c', 'ulimit -n'], Path(sys.argv[1])); child.wait(); child.stop()"
    )
    log = tmp_path / "log"
    ended = subprocess.run([sys.executable, "-c", script, str(log)], capture_output=True, text=True, check=False)
    if refused:
        assert "64 files may be open at once" in ended.stderr and "`ulimit -n 1024`" in ended.stderr
    else:
        assert log.read_text() == "4096\n", ended.stderr


def test_a_child_does_not_end_at_a_warning_that_the_user_makes_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    child = spawn([sys.executable, "-c", "import warnings; warnings.warn('harmless')"], tmp_path / "log")
    assert child.wait(60) == 0, child.last_lines()
    child.stop()


def test_kill_9_of_the_driver_ends_its_children(tmp_path):
    mark, daemon = f"mark-{os.urandom(8).hex()}", DAEMON.format(seconds=300)
    driver = "import sys, time; from pathlib import Path; from selfplay_pipeline.core.processes import spawn; "
    driver += f"spawn([sys.executable, '-c', {daemon!r}], Path({str(tmp_path / 'log')!r})); time.sleep(300)"
    process = subprocess.Popen([sys.executable, "-c", driver], env={**os.environ, "SELFPLAY_MARK": mark})
    while sleepers(mark) < 4:
        time.sleep(0.02)
    process.kill()
    process.wait()
    wait_until_none(mark)
