"""What holds for all tests: timings never decide one, and messages call the program as in an activated environment."""

import functools
import os
import signal
import sys
from pathlib import Path

import pytest
import typer.testing
from hypothesis import settings

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
# typer makes all commands anew for each call, which takes longer than most of what tests let them do.
typer.testing._get_command = functools.cache(typer.testing._get_command)
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Which tests stay together on one core with `--dist loadgroup`, and which begin.

    Those of a file share its fixtures; files that use the session's SGLang server share that, so that there is one.
    Slow files begin, and fast ones fill what time is left on either core.
    """
    served = {item.path for item in items if "_session_server" in getattr(item, "fixturenames", ())}
    for item in items:
        item.add_marker(pytest.mark.xdist_group("server" if item.path in served else item.path.name))
    if config.getoption("loadgroup", default=False):  # in xdist's workers
        items.sort(key=lambda item: item.path.parent.name != "slow")
