"""Measures the time of an iteration outside of play and optimizer steps: start-up, saving, converting."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core import stopping
from selfplay_pipeline.iterate.loop import run_iterate


def run() -> dict[str, Any]:
    """Returns the times of two iterations of the tiny set-up; the first includes the start of the server."""
    with tempfile.TemporaryDirectory() as folder:
        config = load_config("tiny", {"iterate.num_iterations": 2, "iterate.evaluate_every": 0})
        started = time.monotonic()
        run = stopping.run(run_iterate(config, Path(folder) / "run"))
        seconds = time.monotonic() - started
    result: dict[str, Any] = {"seconds": round(seconds, 1)}
    for number, stages in sorted(run.state.iterations.items()):
        played, trained = run.state.played(number), run.state.trained(number)
        assert played and trained and played.seconds is not None
        playing, stepping = played.seconds, trained.seconds_in_steps
        whole = sum(record.seconds for record in stages.values())
        result[f"iteration_{number}"] = {
            "seconds": round(whole, 1),
            "playing": round(playing, 1),
            "in_training_steps": round(stepping, 1),
            "neither": round(whole - playing - stepping, 1),
        }
    return result
