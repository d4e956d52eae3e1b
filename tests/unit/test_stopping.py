"""A signal stops a command; further ones do not disturb that, and one that comes early ends it quietly."""

import asyncio
import os
import pty
import select
import signal
import subprocess
import sys

import pytest

from selfplay_pipeline.core import stopping


@pytest.fixture
def stop():
    """Signals as a command takes them; those of the tests are put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    stopping.interrupt()
    yield stopping.stop
    stopping.stop.asked = None
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_task_cleans_up_whatever_further_signals_come(stop, capfd, first):
    cleaned = []

    async def work():
        try:
            signal.raise_signal(first)
            await asyncio.sleep(60)
        finally:
            for _ in range(20):
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                await asyncio.sleep(0)
            cleaned.append("all")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stopping.stoppable(work()))
    assert cleaned == ["all"]
    assert capfd.readouterr().err == "selfplay: stopping\n"


def test_long_work_of_a_task_is_interrupted_at_once_and_the_task_cleans_up(stop):
    done = []

    @stopping.computing()
    def convert():
        signal.raise_signal(signal.SIGINT)
        done.append("all of it")

    async def work():
        try:
            convert()
        finally:
            await asyncio.sleep(0)
            done.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        stopping.run(work())
    assert done == ["cleaned up"]


def test_further_signals_disturb_no_end_that_is_under_way_until_it_takes_too_long(stop, monkeypatch):
    def work():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            [signal.raise_signal(signal.SIGINT) for _ in range(20)]

    with pytest.raises(KeyboardInterrupt):
        work()
    signal.raise_signal(signal.SIGINT)
    monkeypatch.setattr(stopping, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


STRIKES = """
import os, signal, sys
class Strike:
    def find_spec(self, name, path, target=None):
        if name == 'selfplay_pipeline.cli':
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
from selfplay_pipeline.__main__ import main
main()
"""


def test_a_signal_during_the_imports_ends_the_program_in_one_line():
    ended = subprocess.run([sys.executable, "-c", STRIKES], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, f"selfplay: {stopping.STOPPED}\n")


def test_a_signal_in_a_blocking_end_of_the_work_is_not_lost(stop):
    async def work():
        signal.raise_signal(signal.SIGINT)  # as while a server is stopped; nothing is awaited after it
        return "done"

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stopping.stoppable(work()))


@pytest.mark.long
def test_a_closed_terminal_ends_the_program_as_ctrl_c_does(tmp_path):
    process, terminal = pty.fork()
    if not process:
        options = ("--player", "sharing", "--num-episodes", "1000000", "--output", str(tmp_path / "games.jsonl"))
        os.execv(sys.executable, [sys.executable, "-m", "selfplay_pipeline", "generate", *options])
    while not (tmp_path / "games.jsonl").exists():
        if select.select([terminal], [], [], 0.05)[0]:
            os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == stopping.STOPPED_CODE
