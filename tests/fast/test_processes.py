"""Children never outlive the driver, with all their descendants."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from selfplay_pipeline.processes import spawn

DAEMON = "import subprocess,sys,time; subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep({seconds})"


def sleepers(mark: str) -> int:
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                count += mark.encode() in (entry / "environ").read_bytes()
            except OSError:
                continue
    return count


def wait_until_none(mark: str) -> None:
    deadline = time.monotonic() + 15
    while sleepers(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert sleepers(mark) == 0


@pytest.mark.parametrize("stopped", [True, False])
def test_a_daemon_of_the_child_ends_with_it(tmp_path, stopped):
    mark = f"mark-{os.urandom(8).hex()}"
    seconds = 300 if stopped else 0.5
    child = spawn([sys.executable, "-c", DAEMON.format(seconds=seconds)], tmp_path / "log", {"SELFPLAY_MARK": mark})
    while sleepers(mark) < 3 and child.poll() is None:
        time.sleep(0.02)
    if stopped:
        child.stop()
    else:
        assert child.wait(20) == 0
    wait_until_none(mark)


def test_a_child_is_stopped_also_when_its_supervisor_is_stopped(tmp_path):
    mark = f"mark-{os.urandom(8).hex()}"
    child = spawn([sys.executable, "-c", DAEMON.format(seconds=300)], tmp_path / "log", {"SELFPLAY_MARK": mark})
    while sleepers(mark) < 3 and child.poll() is None:
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGSTOP)
    child.stop()
    assert child.poll() != -signal.SIGKILL, "its supervisor ended by itself, and with it all others"
    wait_until_none(mark)


def test_kill_9_of_the_driver_ends_its_children(tmp_path):
    mark = f"mark-{os.urandom(8).hex()}"
    driver = (
        "import sys, time; from pathlib import Path; from selfplay_pipeline.processes import spawn; "
        f"spawn([sys.executable, '-c', {DAEMON.format(seconds=300)!r}], Path({str(tmp_path / 'log')!r})); "
        "time.sleep(300)"
    )
    process = subprocess.Popen([sys.executable, "-c", driver], env={**os.environ, "SELFPLAY_MARK": mark})
    while sleepers(mark) < 4:
        time.sleep(0.02)
    process.kill()
    process.wait()
    wait_until_none(mark)


def test_the_exit_code_and_the_last_lines_of_a_child_are_kept(tmp_path):
    child = spawn([sys.executable, "-c", "print('one'); print('two'); raise SystemExit(7)"], tmp_path / "log")
    assert child.wait(20) == 7
    assert child.last_lines(1) == "two"


def test_a_child_finds_the_programs_of_its_python_environment_that_is_not_activated(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    child = spawn([sys.executable, "-c", "import shutil; print(shutil.which('pytest'))"], tmp_path / "log")
    assert child.wait(60) == 0
    assert child.last_lines() == str(Path(sys.executable).parent / "pytest")
