"""The plot of `bench.shy`: reward against questions, of the coins and of the players."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.asked import MODES, PLACEBO, TRAINED, WARM, Asked
from selfplay_pipeline.metrics.bootstrap import Interval

COLOURS = {WARM: "0.3", TRAINED: "#0072b2", PLACEBO: "#009e73"}
"""Told apart by people who do not see all colours (Okabe and Ito)."""


def plot(found: Asked, silence: Interval, path: Path) -> None:
    """One panel for each way to sample; whoever is on the coins' line asks no better than a coin."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(MODES), figsize=(10, 4.2), sharey=True, constrained_layout=True)
    for panel, mode in zip(panels, MODES, strict=True):
        coins = [(coin["questions"].value, coin["reward"].value) for coin in found.coins.values()]
        panel.plot(
            *zip(*coins, strict=True), color="#d55e00", marker=".", lw=1.2, label="coins, by their chance to ask"
        )
        for player, of_modes in found.figures.items():
            _point(panel, of_modes[mode]["questions"], of_modes[mode]["reward"], player)
        if silence.value is not None:
            panel.axhline(silence.value, color="black", lw=1.2, ls="--", label="silence")
        panel.set_title(f"{mode} play")
        panel.set_xlabel("questions an episode")
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("normalised reward on held-out states")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


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
