"""A signal stops a command; further ones do not disturb that, and one that comes early ends it quietly."""

import asyncio
import ctypes
import os
import pty
import select
import signal
import subprocess
import sys
import time
import weakref
from contextlib import suppress

import pytest

from selfplay_pipeline.core import stopping
from selfplay_pipeline.core.files import filling, replacing_folder, write_text
from selfplay_pipeline.people.log import LostLine, opened_log
from selfplay_pipeline.slime.questions.records import log_step
from selfplay_pipeline.train.online import _append


@pytest.fixture
def stop():
    """Signals as a command takes them; those of the tests are put back."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    hook = sys.unraisablehook
    stopping.interrupt()
    yield stopping.stop
    stopping.stop.asked, sys.unraisablehook = None, hook
    signal.setitimer(signal.ITIMER_REAL, 0)
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


MAIN = """
sys.meta_path.insert(0, Watch())
from selfplay_pipeline.__main__ import main
main()
"""
STRIKES = f"""
import os, signal, sys
class Watch:
    def find_spec(self, name, path, target=None):
        if name == 'selfplay_pipeline.cli':
            os.kill(os.getpid(), signal.SIGINT)
{MAIN}"""


def ended_by(code, *arguments):
    """What a process says that runs this code, and that a stop ends without a traceback."""
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 130 and "Traceback" not in ended.stderr
    return ended.stderr.splitlines()


def of_stopping(lines):
    return [line for line in lines if line.startswith("selfplay: stop")]


def test_a_signal_during_the_imports_ends_the_program_in_one_line():
    assert ended_by(STRIKES) == [f"selfplay: {stopping.STOPPED}"]


def test_a_signal_in_a_blocking_end_of_the_work_is_not_lost(stop):
    async def work():
        signal.raise_signal(signal.SIGINT)  # as while a server is stopped; nothing is awaited after it
        return "done"

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stopping.stoppable(work()))


class Dies:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


class Plain:
    pass


def in_a_callback_of_a_weak_reference():
    thing = Plain()
    kept = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGTERM))
    del thing
    return kept


def in_a_callback_of_c():
    ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGTERM))()


def in_an_import_whose_errors_are_caught():
    class Finder:
        def find_spec(self, name, path, target=None):
            if name == "no_such_module":
                try:
                    signal.raise_signal(signal.SIGTERM)
                except BaseException:
                    return

    sys.meta_path.insert(0, finder := Finder())
    try:
        import no_such_module  # noqa: F401
    except ImportError:
        pass
    finally:
        sys.meta_path.remove(finder)


SWALLOWED = (Dies, in_a_callback_of_a_weak_reference, in_a_callback_of_c, in_an_import_whose_errors_are_caught)


@pytest.mark.parametrize("strike", SWALLOWED)
def test_a_stop_that_python_would_swallow_comes_a_moment_later(stop, capfd, strike):
    def work():
        strike()
        time.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert capfd.readouterr().err == "selfplay: stopping\n"


@pytest.mark.parametrize("strike", SWALLOWED)
def test_a_stop_that_was_swallowed_in_the_work_of_a_task_is_the_end_of_it(stop, strike):
    done = []

    async def work():
        with stopping.computing():
            strike()
        done.append("more")
        await asyncio.sleep(30)
        done.append("all")

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(stopping.stoppable(work()))
    assert done in ([], ["more"])


def test_work_does_not_begin_after_a_stop_that_was_swallowed(stop):
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    done = []

    async def work():
        done.append("begun")

    with pytest.raises(KeyboardInterrupt):
        stopping.run(work())
    assert not done


def write_folder(kind, path):
    with kind(path) as new:
        (new / "file").write_text("result")


def log_a_lost_episode(path):
    with opened_log(path) as log:
        log(LostLine(at=0.0, episode_id="s0-g000000-p0"))


@pytest.mark.parametrize("write", [
    lambda path: write_text(path, "result"),
    lambda path: write_folder(replacing_folder, path),
    lambda path: write_folder(filling, path),
    log_a_lost_episode,
    lambda path: log_step(path.parent, 0, []),
    lambda path: _append(path, [{"step": 1}]),
])  # fmt: skip
def test_nothing_is_stored_after_a_stop_that_was_swallowed(stop, tmp_path, write):
    stop.asked = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "thing")
    assert [path for path in tmp_path.iterdir() if path.is_dir() or path.stat().st_size] == [], "a log may be begun"


STRIKES_AT = f"""
import os, signal, sys
class Dies:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
class Watch:
    def find_spec(self, name, path, target=None):
        if name == 'transformers':
            sys.meta_path.remove(self)
            for _ in range(2):
                Dies()
{MAIN}"""


@pytest.mark.long
@pytest.mark.parametrize("command", ["generate", "evaluate", "iterate"])
def test_a_stop_in_a_finalizer_while_transformers_is_imported_stores_nothing(tmp_path, command):
    output, model = tmp_path / "out", ["data/tiny_model"] * (command == "evaluate")
    place = output / "games.jsonl" if command == "generate" else output
    options = [*model, "--config", "tiny", "--set", "engine.kind=transformers", "--output", str(place)]
    said = of_stopping(ended_by(STRIKES_AT, command, *options))
    assert said == ["selfplay: stopping", f"selfplay: {stopping.STOPPED}"]
    stored = (*output.rglob("*.json*"), *output.rglob("*.parquet"))
    begun = ("manifest.json", "games.args.json")
    assert [path.name for path in stored if path.stat().st_size and path.name not in begun] == []


FAILS_AFTER_A_STOP = f"""
import os, signal, sys, threading
class Watch:
    def find_spec(self, name, path, target=None):
        if name == 'transformers':
            threading.Thread(target=threading.Event().wait).start()
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                pass
            raise RuntimeError('made of the stop by a library')
{MAIN}"""


@pytest.mark.long
def test_a_failure_that_a_library_made_of_a_stop_is_a_stop_and_waits_for_no_thread(tmp_path):
    options = ("--config", "tiny", "--set", "engine.kind=transformers", "--output", str(tmp_path))
    said = of_stopping(ended_by(FAILS_AFTER_A_STOP, "evaluate", "data/tiny_model", *options))
    assert said == ["selfplay: stopping", f"selfplay: {stopping.STOPPED}"]


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
