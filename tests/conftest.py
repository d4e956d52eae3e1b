"""What holds for all tests: timings never decide one, and messages call the program as in an activated environment."""

import asyncio
import functools
import gc
import inspect
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from selfplay_pipeline.core.garbage import collect_seldom
from selfplay_pipeline.games import registry

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
# Each run has the same examples, and no slow machine fails a test; `--hypothesis-profile fresh` draws other examples.
REPEATED = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeated", REPEATED)
settings.register_profile("fresh", REPEATED, derandomize=False)
settings.register_profile("quick", REPEATED, max_examples=25)  # for `make test-fast`
settings.load_profile("repeated")
# typer makes all commands anew for each call, which takes longer than most of what tests let them do.
typer.testing._get_command = functools.cache(typer.testing._get_command)
# Ray and wandb give up after 30 to 60 seconds, in which a loaded machine may not have started their processes.
for _name, _limit in (
    ("RAY_agent_register_timeout_ms", "300000"),
    ("RAY_worker_register_timeout_seconds", "300"),
    ("WANDB__SERVICE_WAIT", "300"),
):
    os.environ.setdefault(_name, _limit)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


pytest_plugins = ["common_fixtures", "shared_server"]
REAL = ("contract", "system")
"""The folders of tests that start the real server or trainer."""
SERVED = re.compile(r"\b(?:_session_server|sglang_server|session_trainer|loop_with_trainer)\b|def \w+\(run[,)]")
"""The text of a test file that uses the session's server or trainer; `run` is the loop that was run on them."""
FIRST = (
    "test_kill.py",
    "test_lora.py",
    "test_cluster.py",
    "test_train.py",
    "test_train_stops.py",
    "test_online_train.py",
)
"""What takes longest of the files that use neither; they begin after the session's server, in another process.

One trainer goes from a file to the next where both have trainings that it can do.
"""
MOST_REAL = 2
"""Number of processes that begin with real servers or trainers; further ones begin with unit tests.

Tests of kills and restarts wait for much of their time. Unit tests fill it, and need little memory.
"""


class OneServer(LoadFileScheduling):
    """Keeps the tests of a file in one process, and all files that use the session's server or trainer.

    So there is one of each.

    xdist's own groups (3.8) do nothing with pytest 9.2, in which a test cannot be named anew.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "server" if is_served(Path(__file__).parents[1] / file) else file

    def _assign_work_unit(self, node: Any) -> None:
        if self.nodes.index(node) >= MOST_REAL:
            unit = next((scope for scope in self.workqueue if scope.startswith("tests/unit/")), None)
            if unit is not None:
                self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


@functools.cache
def is_served(file: Path) -> bool:
    return file.parent.name in REAL and SERVED.search(file.read_text()) is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What is imported by now stays, so that looking for garbage in it, again and again, is in vain."""
    gc.collect()
    gc.freeze()
    collect_seldom()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="module", autouse=True)
def games_of_one_file() -> Iterator[None]:
    """Forget, after each file of tests, the games that it found; else commands suggest --game in the next file."""
    found = dict(registry._found)
    yield
    registry._found.clear()
    registry._found.update(found)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneServer | None:
    return OneServer(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where tests are spread over processes, the longest files begin, and unit tests fill the rest of the time."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.path))


def place(file: Path) -> int:
    """When a file begins, the first with 0."""
    if is_served(file):
        return 0
    return 1 + FIRST.index(file.name) if file.name in FIRST else 1 + len(FIRST) + (file.parent.name not in REAL)
