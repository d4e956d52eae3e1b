"""Starts SGLang servers while another process keeps taking free ports, and counts failed starts.

 python -m chaos.ports --starts 40 --copies 2 --jobs 2

Other programs that look for a free port suffer as well, so give it a network of its own:

 unshare --map-root-user --net sh -c 'ip link set lo up; exec python -m chaos.ports'
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from chaos.outside import MODEL
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.engines.types import EngineError

HELD = 14_000
"""Number of ports taken at a time, of the 28,232 that Linux hands out."""
PAUSE = 0.01
"""Seconds after which a burst of ports is exchanged for others."""
BURST = 50


def take_ports() -> None:
    """Take free ports and release the oldest, until standard input ends."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held: deque[socket.socket] = deque()
    os.set_blocking(0, False)
    while _parent_lives():
        for _ in range(BURST):
            taken = socket.socket()
            held.append(taken)
            with contextlib.suppress(OSError):  # all are taken
                taken.bind(("127.0.0.1", 0))
            if len(held) > min(HELD, most - 100):
                held.popleft().close()
        time.sleep(PAUSE)


def _parent_lives() -> bool:
    try:
        return os.read(0, 1) != b""
    except BlockingIOError:
        return True


@contextlib.contextmanager
def ports_taken() -> Iterator[None]:
    """Run a process that takes ports."""
    taker = subprocess.Popen([sys.executable, "-m", "chaos.ports", "--take"], stdin=subprocess.PIPE)
    assert taker.stdin is not None
    try:
        time.sleep(HELD / BURST * PAUSE + 2)
        yield
    finally:
        taker.stdin.close()
        taker.wait(60)


async def starts(count: int, jobs: int, copies: int, folder: Path) -> bool:
    """Start and stop servers, `jobs` at a time; prints a line for each, and returns whether all starts succeeded."""
    at_once, failed, repeated = asyncio.Semaphore(jobs), 0, 0

    async def start(number: int) -> None:
        nonlocal failed, repeated
        said: list[str] = []
        spec = ServerSpec(str(MODEL), "cpu", folder / f"server_{number}.log", data_parallel=copies)
        async with at_once:
            began, how = time.monotonic(), "answers"
            try:
                async with SGLangServer(spec, max_restarts=3, tell=said.append):
                    pass
            except EngineError as error:
                failed, how = failed + 1, f"failed: {str(error).splitlines()[0]}"
            repeated += bool(said)
            print(f"start {number}: {how}, {len(said)} lines told, {time.monotonic() - began:.0f} s", flush=True)

    await asyncio.gather(*(start(number) for number in range(count)))
    print(f"{count} starts of {copies} copies: {failed} failed, {repeated} were repeated")
    return not failed


def main(arguments: list[str]) -> int:
    """Run the test, or take ports; returns the exit code."""
    options = argparse.ArgumentParser(prog="python -m chaos.ports", description=__doc__)
    options.add_argument("--starts", type=int, default=40, help="number of servers that are started")
    options.add_argument("--copies", type=int, default=2, help="copies of the model in each server")
    options.add_argument("--jobs", type=int, default=2, help="servers that start at a time")
    options.add_argument("--take", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args(arguments)
    if given.take:
        take_ports()
        return 0
    with tempfile.TemporaryDirectory() as folder, ports_taken():
        return 0 if asyncio.run(starts(given.starts, given.jobs, given.copies, Path(folder))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
