"""Pictures of studies: curves of learning, and the worth of words.

python -m studies.common.pictures studies/planner/results/4x4     # draws a study's pictures again, and writes its table
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from bench.pictures import BLUE, GREY, ORANGE, drawn
from selfplay_pipeline.core.files import read_model, write_text
from selfplay_pipeline.metrics.bootstrap import Interval
from studies.common.arms import ARMS, MODES, MUTED, NOISE, PLACEBO, SELF_PLAY, WARM
from studies.common.compared import Results, tables

COLOURS = {SELF_PLAY: BLUE, MUTED: ORANGE, PLACEBO: "#12a67c", NOISE: "#b8860b", WARM: GREY}
"""Colours that colour-blind readers can distinguish (after Okabe and Ito)."""


def main(study: Annotated[Path, typer.Argument(help="Folder with results.json.")]) -> None:
    """Draw the pictures and write the table of a study from its stored results."""
    show(read_model(study / "results.json", Results, "python -m studies.common.learn"), study)


def show(results: Results, folder: Path) -> None:
    """Write `table.md`, and draw `learning.svg` and, if the study swapped messages, `words.svg`."""
    write_text(folder / "table.md", tables(results))
    learning(results, folder / "learning.svg")
    if any(player.swapped for player in results.players.values()):
        words(results, folder / "words.svg")


def learning(results: Results, path: Path) -> None:
    """Draw the held-out reward over the iterations of each arm, one panel for each sampling mode.

    Thin lines are seeds, thick lines their mean; the points next to them are the larger evaluations, with intervals
    over seeds and states.
    """
    with drawn(path, MODES) as panels:
        for mode, panel in zip(MODES, panels, strict=True):
            panel.set_title(f"{mode} play")
            panel.set_xlabel("iterations")
            for arm, curves in results.curves.items():
                seeds = [[(one.iteration, one.rewards[mode]) for one in of] for of in curves.values()]
                draw_curves(panel, seeds, COLOURS[arm])
            _draw_ends(panel, results, mode)
            _draw_lines(panel, results)
            panel.xaxis.get_major_locator().set_params(integer=True)
        draw_scale(panels[0])


def words(results: Results, path: Path) -> None:
    """Draw each player's reward with messages as said and with swapped ones; the difference is the worth of words."""
    with drawn(path, MODES) as panels:
        for mode, panel in zip(MODES, panels, strict=True):
            panel.set_title(f"{mode} play")
            for place, (name, player) in enumerate(results.players.items()):
                said, swapped = player.talking[mode]["reward"], player.swapped[mode]["reward"]
                look = {"color": COLOURS[name], "capsize": 3, "markersize": 7, "ls": "none"}
                _point(panel, place - 0.1, said, fmt="o", label="messages as said" if not place else None, **look)
                _point(panel, place + 0.1, swapped, fmt="o", mfc="none", label=None if place else "swapped", **look)
            panel.set_xticks(range(len(results.players)), list(results.players))
            _draw_lines(panel, results, only="silence")
        draw_scale(panels[0])


def draw_scale(panel: Any) -> None:
    """Label the axis of rewards, and cut it where no reward can be; wide intervals go on outside of the picture."""
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -0.05), min(high, 1.05))
    panel.set_ylabel("reward on held-out states")


def _point(panel: Any, place: float, one: Interval, **look: Any) -> None:
    """Draw a value with its interval."""
    if one.value is not None and one.low is not None and one.high is not None:
        panel.errorbar(place, one.value, [[one.value - one.low], [one.high - one.value]], **look)


def draw_curves(panel: Any, curves: Sequence[Sequence[tuple[int, float]]], colour: str, label: str = "") -> None:
    """Draw a thin line for each seed's points, (iteration, reward), and a thick line for their mean."""
    by_iteration: dict[int, list[float]] = {}
    for points in curves:
        panel.plot(*zip(*points, strict=True), color=colour, alpha=0.3, lw=0.8)
        for iteration, reward in points:
            by_iteration.setdefault(iteration, []).append(reward)
    means = [np.mean(of) for of in by_iteration.values()]
    panel.plot(by_iteration.keys(), means, color=colour, lw=2, label=label or None)


def _draw_ends(panel: Any, results: Results, mode: Any) -> None:
    """Draw final rewards right of the curves, and the warm start left of them, each played as it was trained."""
    right = results.iterations
    for number, (name, player) in enumerate(results.players.items()):
        mute = name in ARMS and ARMS[name].mute
        seeds = f"{len(player.seeds)} seed{'s' * (len(player.seeds) > 1)}"
        _point(
            panel,
            right * (-0.04 if name == WARM else 1 + 0.04 * number),
            (player.muted if mute else player.talking)[mode]["reward"],
            color=COLOURS[name], fmt="s", capsize=3, markersize=5,
            label=f"{name}, played muted as trained, {seeds}" if mute else f"{name}, {seeds}",
        )  # fmt: skip


def _draw_lines(panel: Any, results: Results, only: str | None = None) -> None:
    """Draw the reference lines. Own view is left out if there is silence: without a filter the two nearly meet."""
    for name, line in results.references.items():
        if line.value is None or name == "optimum" or (name == "own_view" and "silence" in results.references):
            continue
        if only not in (None, name):
            continue
        strong = name == "silence"
        look = {"color": GREY, "lw": 1.4, "ls": "--"} if strong else {"color": GREY, "lw": 0.8, "ls": ":"}
        panel.axhline(line.value, **look)
        panel.annotate(
            name.replace("_", " "), (0.09, line.value), xycoords=("axes fraction", "data"), xytext=(0, 2),
            textcoords="offset points", fontsize=9,
        )  # fmt: skip


if __name__ == "__main__":
    command.run(main)
