"""Tests that memory and handles do not grow over many scripted games in one command.

python -m chaos.endurance --games 100000
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import linear_regression

import psutil

from chaos.outside import Ended, room

EVERY = 20.0
"""Seconds between two samples."""
WARM = 0.1
"""First share of the games, which does not count for the slope, because the program still loads modules then."""


Sample = tuple[int, float]
"""Finished games, and resident memory in megabytes."""


def look(process: psutil.Process, output: Path) -> Sample:
    """Measure a running command, and print what was measured."""
    games = output.read_bytes().count(b"\n") if output.exists() else 0
    with process.oneshot():
        memory, handles, threads = process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()
    children = len(process.children(recursive=True))
    print(f"{games:8d} games {memory:8.1f} MB {handles:4d} handles {threads:3d} threads {children:3d} children")
    return games, memory


def slope(samples: Sequence[Sample]) -> float:
    """Returns the growth of memory in megabytes per 10,000 games, by least squares."""
    games, memory = zip(*(sample for sample in samples if sample[0] >= WARM * samples[-1][0]), strict=True)
    return 10_000 * linear_regression(games, memory).slope if len(set(games)) > 1 else 0.0


def play(games: int, folder: Path) -> tuple[Ended, list[Sample], int, list[str]]:
    """Play, and measure every few seconds.

    Returns:
        The end of the command, the samples, the number of different episodes, and the leftovers.
    """
    output = folder / "out" / "games.jsonl"
    samples = list[Sample]()
    with room(folder) as place:
        running = place.start(
            "generate", "--config", "tiny", "--player", "own-view", "--player", "sharing",
            "--num-episodes", str(games), "--output", str(output),
        )  # fmt: skip
        process = psutil.Process(running.process.pid)
        while running.alive:
            with contextlib.suppress(psutil.Error):
                samples.append(look(process, output))
            time.sleep(EVERY)
        ended = running.ended()
        left = place.left()
    with output.open("rb") as file:
        episodes = {line.split(b'"episode_id":"', 1)[1].split(b'"', 1)[0] for line in file}
    return ended, samples, len(episodes), left


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print the samples; returns 1 if games were lost or anything was left."""
    options = argparse.ArgumentParser(prog="python -m chaos.endurance", description=__doc__)
    options.add_argument("--games", type=int, default=100_000)
    asked = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        ended, samples, episodes, left = play(asked.games, Path(folder))
    print(f"memory grows by {slope(samples):.2f} MB in 10,000 games, after the first {WARM:.0%}")
    print(f"exit code {ended.code}, {episodes} of {asked.games} episodes, {ended.seconds:.0f} s")
    print(f"left: {', '.join(left) or 'nothing'}")
    return 0 if ended.code == 0 and episodes == asked.games and not left else 1


if __name__ == "__main__":
    sys.exit(main())
