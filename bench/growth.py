"""Measures seconds and peak memory of the commands that read whole files, against the number of episodes.

python -m bench.growth

Each command runs as a user runs it, in a process of its own, on real episodes of the tiny model that are repeated with
group numbers of their own. The system counts the memory of this process too, which plays in another process and so
stays smaller than what it measures.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from bench import command
from bench.convert import repeat

SIZES = (2_000, 20_000, 200_000)
SELFPLAY = ("-m", "selfplay_pipeline")
FRAME = "import sys; from pathlib import Path; import selfplay_pipeline as sp; sp.episodes_frame(Path(sys.argv[1]))"
READERS: dict[str, tuple[str, ...]] = {
    "convert": (*SELFPLAY, "convert", "GAMES", "--output", "OUT/rows"),
    "report": (*SELFPLAY, "report", "GAMES", "--output", "OUT/report.html"),
    "export": (*SELFPLAY, "export", "GAMES", "--config", "tiny", "--output", "OUT/dataset"),
    "episodes_frame": ("-c", FRAME, "GAMES"),
}
"""Arguments of Python for each reader."""
TINY = ("--config", "tiny", "--num-states", "STATES")
EVALUATE = (*SELFPLAY, "evaluate", "sharing", *TINY, "--output", "OUT/evaluation")
"""Arguments of Python to play and measure two episodes on each state."""


def main(
    sizes: Annotated[list[int] | None, typer.Option("--size", help=f"Numbers of episodes [default: {SIZES}].")] = None,
) -> None:
    """Print one line of JSON for each command and size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real = folder / "real.jsonl"
        play = [*SELFPLAY, "generate", "--config", "tiny", "--num-episodes", "256", "--output", str(real)]
        subprocess.run([sys.executable, *play], check=True, capture_output=True)
        lines = [json.loads(line) for line in real.read_text().splitlines()]
        for size in sizes or SIZES:
            games = folder / "games.jsonl"
            repeat(lines, games, size)
            for reader, arguments in READERS.items():
                measure(reader, size, [part.replace("GAMES", str(games)) for part in arguments], folder / "out")
            measure("evaluate", size, [part.replace("STATES", str(size // 2)) for part in EVALUATE], folder / "out")


def measure(reader: str, size: int, arguments: list[str], out: Path) -> None:
    """Run a command and print its seconds and its largest resident memory."""
    out.mkdir()
    log, began = out / "log", time.perf_counter()
    command_line = [sys.executable, *(part.replace("OUT", str(out)) for part in arguments)]
    opened = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT, 0o600)
    written = [opened, (os.POSIX_SPAWN_DUP2, 1, 2)]
    process = os.posix_spawn(sys.executable, command_line, os.environ, file_actions=written)
    _, status, used = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{reader}: {log.read_text()[-2000:]}")
    found = {"seconds": round(time.perf_counter() - began, 1), "peak_mb": round(used.ru_maxrss / 1024)}
    print(json.dumps({"command": reader, "episodes": size} | found), flush=True)
    shutil.rmtree(out)


if __name__ == "__main__":
    command.run(main)
