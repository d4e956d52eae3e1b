"""The plot of `bench.learn`: held-out reward over the iterations of each arm, and its final value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.arms import ARMS, CREDIT, IMITATION, MODES, MUTED, PLACEBO, SELF_PLAY, WARM, Point
from bench.compared import Results
from selfplay_pipeline.evaluate.run import Mode

COLOURS = {
    SELF_PLAY: "#0072b2", MUTED: "#d55e00", PLACEBO: "#009e73", IMITATION: "#cc79a7", CREDIT: "#e69f00", WARM: "0.3",
}  # fmt: skip
"""Colours that colour-blind readers can distinguish (Okabe and Ito)."""


def plot(results: Results, path: Path) -> None:
    """Draw one panel for each sampling mode.

    Thin lines are seeds, thick lines their mean; the points next to them are the larger evaluations, with intervals
    over seeds and states.
    """
    with _drawn(path) as panels:
        for mode, panel in panels.items():
            for arm, curves in results.curves.items():
                _draw_curves(panel, curves, mode, COLOURS[arm])
            _draw_ends(panel, results, mode)
            _draw_lines(panel, results)
            panel.xaxis.get_major_locator().set_params(integer=True)


@contextmanager
def _drawn(path: Path) -> Iterator[dict[Mode, Any]]:
    """Yields matplotlib's axes to draw on, by sampling mode; writes the file afterwards."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(MODES), figsize=(10, 4.6), sharey=True, constrained_layout=True)
    yield dict(zip(MODES, panels, strict=True))
    for panel, mode in zip(panels, MODES, strict=True):
        panel.set_title(f"{mode} play")
        panel.set_xlabel("iterations")
        panel.grid(alpha=0.2)
    panels[0].set_ylabel("normalised reward on held-out states")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_curves(panel: Any, curves: Mapping[int, Sequence[Point]], mode: Mode, colour: str) -> None:
    by_iteration: dict[int, list[float]] = {}
    for points in curves.values():
        panel.plot(
            [one.iteration for one in points], [one.rewards[mode] for one in points], color=colour, alpha=0.25, lw=0.8
        )
        for one in points:
            by_iteration.setdefault(one.iteration, []).append(one.rewards[mode])
    panel.plot(by_iteration.keys(), [np.mean(values) for values in by_iteration.values()], color=colour, lw=1.8)


def _draw_ends(panel: Any, results: Results, mode: Mode) -> None:
    """Draw final rewards right of the curves, and the warm start left of them, each played as it was trained."""
    right = results.iterations
    for number, (name, player) in enumerate(results.players.items()):
        mute = name in ARMS and ARMS[name].mute
        reward = (player.muted if mute else player.talking)[mode]["reward"]
        if reward.value is None or reward.low is None or reward.high is None:
            continue
        seeds = f"{len(player.seeds)} seed{'s' * (len(player.seeds) > 1)}"
        panel.errorbar(
            right * (-0.04 if name == WARM else 1 + 0.04 * number),
            reward.value,
            [[reward.value - reward.low], [reward.high - reward.value]],
            color=COLOURS[name], fmt="s", capsize=3, markersize=5,
            label=f"{name}, played muted as trained, {seeds}" if mute else f"{name}, {seeds}",
        )  # fmt: skip


def _draw_lines(panel: Any, results: Results) -> None:
    """Draw the reference lines. Own view is left out if there is silence: without a filter the two nearly meet."""
    for name, line in results.references.items():
        if line.value is None or name == "optimum" or (name == "own_view" and "silence" in results.references):
            continue
        strong = name == "silence"
        look = {"color": "black", "lw": 1.2, "ls": "--"} if strong else {"color": "0.5", "lw": 0.8, "ls": ":"}
        panel.axhline(line.value, **look)
        panel.annotate(
            name.replace("_", " "), (0.09, line.value), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", fontsize=8, color="0.2",
        )  # fmt: skip
