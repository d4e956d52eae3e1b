"""The plot of `bench.shy`: reward against questions, for the coins and the players."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.asked import PLACEBO, TRAINED, WARM, Asked
from bench.panels import drawn
from selfplay_pipeline.metrics.bootstrap import Interval

COLOURS = {WARM: "0.3", TRAINED: "#0072b2", PLACEBO: "#009e73"}
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""


def plot(found: Asked, silence: Interval, path: Path) -> None:
    """Draw one panel for each sampling mode; a player on the coins' line asks no better than a coin."""
    coins = [(coin["questions"].value, coin["reward"].value) for coin in found.coins.values()]
    with drawn(path, "questions an episode") as panels:
        for mode, panel in panels.items():
            panel.plot(*zip(*coins, strict=True), color="#d55e00", marker=".", lw=1.2, label="coins, by chance to ask")
            for player, of_modes in found.figures.items():
                _point(panel, of_modes[mode]["questions"], of_modes[mode]["reward"], player)
            if silence.value is not None:
                panel.axhline(silence.value, color="black", lw=1.2, ls="--", label="silence")


def _point(panel: Any, questions: Interval, reward: Interval, player: str) -> None:
    if questions.value is None or reward.value is None:
        return
    panel.errorbar(
        questions.value, reward.value, _arms(reward), _arms(questions),
        color=COLOURS[player], fmt="s", capsize=3, markersize=5, label=player,
    )  # fmt: skip


def _arms(interval: Interval) -> list[list[float]] | None:
    if interval.value is None or interval.low is None or interval.high is None:
        return None
    return [[interval.value - interval.low], [interval.high - interval.value]]
