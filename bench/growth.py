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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import command

SIZES = (2_000, 20_000, 200_000)
SELFPLAY = ("-m", "selfplay_pipeline")
FRAME = "import sys; from pathlib import Path; import selfplay_pipeline as sp; sp.episodes_frame(Path(sys.argv[1]))"
COMMANDS: dict[str, tuple[str, ...]] = {
    "convert": (*SELFPLAY, "convert", "GAMES", "--output", "OUT"),
    "episodes_frame": ("-c", FRAME, "GAMES"),
    "report": (*SELFPLAY, "report", "GAMES", "--output", "OUT"),
    "export": (*SELFPLAY, "export", "GAMES", "--config", "tiny", "--output", "OUT"),
    "evaluate": (*SELFPLAY, "evaluate", "sharing", "--config", "tiny", "--num-states", "STATES", "--output", "OUT"),
}
"""Arguments of Python for each command. `evaluate` plays two episodes on each state, then reads and measures them."""


def main(
    sizes: Annotated[list[int] | None, typer.Option("--size", help=f"Numbers of episodes [default: {SIZES}].")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Names of commands to measure [default: all].")] = None,
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
            for name, arguments in COMMANDS.items():
                if name in (only or COMMANDS):
                    named = {"GAMES": str(games), "STATES": str(size // 2), "OUT": str(folder / "out")}
                    measure(name, size, [named.get(part, part) for part in arguments], folder / "out")


def repeat(lines: Sequence[dict[str, Any]], games: Path, episodes: int) -> None:
    """Write `episodes` episodes, repeating `lines`; each repetition gets group numbers of its own."""
    groups = 1 + max(line["group_index"] for line in lines)
    with games.open("w") as file:
        for number in range(episodes):
            line = lines[number % len(lines)]
            group = line["group_index"] + groups * (number // len(lines))
            episode_id = f"s0-g{group:06d}-p{line['episode']}"
            file.write(json.dumps(line | {"group_index": group, "episode_id": episode_id}) + "\n")


def measure(name: str, size: int, arguments: list[str], out: Path) -> None:
    """Run a command and print its wall seconds, its processor seconds and its largest resident memory."""
    log, began = out.with_suffix(".log"), time.perf_counter()
    opened = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    written = [opened, (os.POSIX_SPAWN_DUP2, 1, 2)]
    process = os.posix_spawn(sys.executable, [sys.executable, *arguments], os.environ, file_actions=written)
    _, status, used = os.wait4(process, 0)
    if status:
        raise RuntimeError(f"{name}: {log.read_text()[-2000:]}")
    found = {
        "seconds": round(time.perf_counter() - began, 1),
        "processor": round(used.ru_utime + used.ru_stime, 1),
        "peak_mb": round(used.ru_maxrss / 1024),
    }
    print(json.dumps({"command": name, "episodes": size} | found), flush=True)
    shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)


if __name__ == "__main__":
    command.run(main)
