"""Measures time and memory of a report on 10,000 episodes, and the size of its page."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.convert import peak_mb, repeat
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.generate.stage import generate_episodes
from selfplay_pipeline.report.run import scan_all, write_page
from selfplay_pipeline.report.sources import discover

EPISODES = 10_000
LONGER = 25
"""Factor that brings trajectories to the length of a large model's, about 1,500 tokens."""


def run() -> dict[str, Any]:
    """Returns seconds, peak resident memory and the page's size in MB, each report in a process of its own."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        real = Path(folder) / "real.jsonl"
        asyncio.run(generate_episodes(load_config("tiny", {"generate.num_episodes": 256}), real))
        for name, longer in (("tiny", 1), ("long", LONGER)):
            games = Path(folder) / f"{name}.jsonl"
            repeat(_stretched(real, longer), games, EPISODES)
            command = [sys.executable, "-m", "bench.report", str(games)]
            result[name] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout.splitlines()[-1])
            games.unlink()
    return result


def _stretched(real: Path, times: int) -> list[dict[str, Any]]:
    """Returns real episodes, with their trajectories' responses repeated."""
    episodes = [json.loads(line) for line in real.read_text().splitlines()]
    for episode in episodes:
        for trajectory in episode["trajectories"]:
            for name in ("response_ids", "response_mask", "response_logprobs"):
                trajectory[name] = trajectory[name] * times
    return episodes


def _report(games: Path) -> None:
    started = time.perf_counter()
    source, page = discover(games), games.with_suffix(".html")
    write_page(source, scan_all(source), page, max_megabytes=14)
    seconds = time.perf_counter() - started
    sizes = {"games_mb": games.stat().st_size / 1e6, "page_mb": page.stat().st_size / 1e6}
    print(json.dumps({"seconds": round(seconds, 1), "peak_mb": peak_mb()} | {k: round(v, 1) for k, v in sizes.items()}))


if __name__ == "__main__":
    _report(Path(sys.argv[1]))
