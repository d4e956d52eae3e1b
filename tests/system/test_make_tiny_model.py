"""`selfplay model tiny` with the real trainer, and a lesson of a few episodes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.games.base import Lesson, Play, Stage
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.warm_start.lesson import build_warm_start


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Lesson:
    """A lesson of two stages, with the words of the usual one."""
    lessons = make_game(load_config("tiny", {}).game).lessons
    stages = (
        Stage((Play(("sharing", "sharing"), 70),), epochs=2),
        Stage((Play(("teacher", "teacher"), 40),), epochs=1),
    )
    lesson = Lesson(Path("nowhere"), lessons["self-play"].words, stages)
    monkeypatch.setitem(lessons, "short", lesson)  # type: ignore[arg-type]
    return lesson


def test_each_stage_goes_on_with_the_model_of_the_one_before(short: Lesson, tmp_path: Path) -> None:
    out = asyncio.run(build_warm_start(load_config("tiny", {"seed": 3}), "short", tmp_path / "out"))
    check_checkpoint(str(out))
    made = json.loads((out / "warm_start.json").read_text())
    first, second = made["stages"]
    assert (made["lesson"], made["seed"]) == ("short", 3)
    assert ([play["players"] for play in first["plays"]], first["rows"], first["steps"]) == (
        [["sharing", "sharing"]],
        138,
        6,
    )
    assert ([play["players"] for play in second["plays"]], second["rows"], second["steps"]) == (
        [["teacher", "teacher"]],
        78,
        2,
    )
    assert first["held_out_losses"][0] > first["held_out_losses"][-1]
    assert second["held_out_losses"][0] < first["held_out_losses"][0] / 1.5
    assert not (out / "making").exists()
