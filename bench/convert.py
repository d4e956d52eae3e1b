"""Measures the speed of `convert`, and that its memory does not grow with the number of episodes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.run import run_convert
from selfplay_pipeline.generate.stage import generate_episodes

SIZES = (1_000, 100_000)


def run() -> dict[str, Any]:
    """Returns rows per second and peak resident memory in MB, for each size in a process of its own."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        real = Path(folder) / "real.jsonl"
        asyncio.run(generate_episodes(load_config("tiny", {"generate.num_episodes": 256}), real))
        for episodes in SIZES:
            games = Path(folder) / f"{episodes}.jsonl"
            repeat([json.loads(line) for line in real.read_text().splitlines()], games, episodes)
            command = [sys.executable, "-m", "bench.convert", str(games)]
            result[f"{episodes}_episodes"] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            games.unlink()
    small, large = (result[f"{episodes}_episodes"]["peak_mb"] for episodes in SIZES)
    return result | {"peak_mb_more": round(large - small, 1)}


def repeat(lines: Sequence[dict[str, Any]], games: Path, episodes: int) -> None:
    """Write `episodes` episodes, repeating `lines`; each repetition gets group numbers of its own."""
    groups = 1 + max(line["group_index"] for line in lines)
    with games.open("w") as file:
        for number in range(episodes):
            line = lines[number % len(lines)]
            group = line["group_index"] + groups * (number // len(lines))
            episode_id = f"s0-g{group:06d}-p{line['episode']}"
            file.write(json.dumps(line | {"group_index": group, "episode_id": episode_id}) + "\n")


def peak_mb() -> float:
    """Returns the largest resident memory of this process so far, in MB."""
    # getrusage would also count the parent's memory: the maximum from before exec remains.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return round(int(status["VmHWM"].split()[0]) / 1024, 1)


def _convert(games: Path) -> None:
    started = time.perf_counter()
    report = run_convert(games, games.parent / "out")
    seconds = time.perf_counter() - started
    rows = report.train_rows + report.val_rows
    print(json.dumps({"rows_per_second": round(rows / seconds), "peak_mb": peak_mb()}))


if __name__ == "__main__":
    _convert(Path(sys.argv[1]))
