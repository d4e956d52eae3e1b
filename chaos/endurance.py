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
from dataclasses import dataclass
from pathlib import Path

import psutil

from chaos.outside import Ended, room

ROWS = 12
EVERY = 2.0
WARM = 0.1
"""First share of the games, which does not count for the slope, because the program still loads modules then."""


@dataclass(frozen=True)
class Sample:
    """Measurements at one moment."""

    seconds: float
    games: int
    megabytes: float
    """Resident memory."""
    handles: int
    """Open file descriptors."""
    threads: int
    children: int
    file_megabytes: float


def look(process: psutil.Process, output: Path, began: float, games: int) -> Sample:
    """Measure a running command, whose progress is `games` finished games."""
    size = output.stat().st_size if output.exists() else 0
    with process.oneshot():
        return Sample(
            time.monotonic() - began,
            games,
            process.memory_info().rss / 1e6,
            process.num_fds(),
            process.num_threads(),
            len(process.children(recursive=True)),
            size / 1e6,
        )


def slope(samples: Sequence[Sample]) -> float:
    """Returns the growth of memory in megabytes per 10,000 games, by least squares."""
    last = samples[-1].games
    warm = [sample for sample in samples if sample.games >= WARM * last]
    mean_games = sum(sample.games for sample in warm) / len(warm)
    mean_memory = sum(sample.megabytes for sample in warm) / len(warm)
    spread = sum((sample.games - mean_games) ** 2 for sample in warm)
    together = sum((sample.games - mean_games) * (sample.megabytes - mean_memory) for sample in warm)
    return 10_000 * together / spread if spread else 0.0


def table(samples: Sequence[Sample]) -> str:
    """Returns a table of about twelve samples, evenly spread over the games."""
    last = samples[-1].games
    wanted = [last * row / ROWS for row in range(ROWS + 1)]
    rows = [min(samples, key=lambda sample: abs(sample.games - games)) for games in wanted]
    lines = ["   games  seconds  memory MB  handles  threads  children  file MB"]
    for row in dict.fromkeys(rows):
        lines.append(
            f"{row.games:8d} {row.seconds:8.1f} {row.megabytes:10.1f} {row.handles:8d} {row.threads:8d} "
            f"{row.children:9d} {row.file_megabytes:8.1f}"
        )
    return "\n".join(lines)


class Counting:
    """Counter of the lines of a growing file, which reads each byte once."""

    def __init__(self, path: Path) -> None:
        self.path, self.lines, self._at = path, 0, 0

    def count(self) -> int:
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._at)
                new = file.read()
            self.lines += new.count(b"\n")
            self._at += len(new)
        return self.lines


def play(games: int, folder: Path) -> tuple[Ended, list[Sample], int, list[str]]:
    """Play, and measure every few seconds.

    Returns:
        The end of the command, the samples, the number of different episodes, and the leftovers.
    """
    output = folder / "out" / "games.jsonl"
    samples, counting = list[Sample](), Counting(output)
    with room(folder) as place:
        began = time.monotonic()
        running = place.start(
            "generate", "--config", "tiny", "--player", "own-view", "--player", "sharing",
            "--num-episodes", str(games), "--output", str(output),
        )  # fmt: skip
        process = psutil.Process(running.process.pid)
        while running.alive:
            with contextlib.suppress(psutil.Error):
                samples.append(look(process, output, began, counting.count()))
            time.sleep(EVERY)
        ended = running.ended()
        left = place.left()
    with output.open("rb") as file:
        episodes = {line.split(b'"episode_id":"', 1)[1].split(b'"', 1)[0] for line in file}
    return ended, samples, len(episodes), left


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print the table; returns 1 if games were lost or anything was left."""
    options = argparse.ArgumentParser(prog="python -m chaos.endurance", description=__doc__)
    options.add_argument("--games", type=int, default=100_000)
    asked = options.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        ended, samples, episodes, left = play(asked.games, Path(folder))
    print(table(samples))
    print(f"memory grows by {slope(samples):.2f} MB in 10,000 games, after the first {WARM:.0%}")
    print(f"exit code {ended.code}, {episodes} of {asked.games} episodes, {ended.seconds:.0f} s")
    print(f"left: {', '.join(left) or 'nothing'}")
    return 0 if ended.code == 0 and episodes == asked.games and not left else 1


if __name__ == "__main__":
    sys.exit(main())
