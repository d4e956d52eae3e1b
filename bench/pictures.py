"""Pictures of studies: curves of learning, the worth of words, the leaderboard. They suit light and dark pages.

python -m bench.pictures docs/results/learn_fixed     # draws a study's pictures again, and writes its table
python -m bench.pictures                              # draws the leaderboard
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from bench.arms import ARMS, CREDIT, IMITATION, MODES, MUTED, NOISE, PLACEBO, SELF_PLAY, WARM
from bench.compared import Results, tables
from selfplay_pipeline.core.files import read_model, write_text
from selfplay_pipeline.evaluate.benchmark import Line, read_lines_of
from selfplay_pipeline.metrics.bootstrap import Interval

BLUE, ORANGE, GREY = "#1f8fe0", "#e8711a", "#8c8c8c"
"""Colours of self-play, of play without words, and of text and axes; all legible on white and on black."""
COLOURS = {
    SELF_PLAY: BLUE, MUTED: ORANGE, PLACEBO: "#12a67c", NOISE: "#b8860b", IMITATION: "#cc79a7", CREDIT: "#e69f00",
    WARM: GREY,
}  # fmt: skip
"""Colours that colour-blind readers can distinguish (after Okabe and Ito)."""
BOARD = Path("docs/results")
BOARDS = {
    "matching-people-free": "matching, 8×8",
    "mediation-dialop-free": "mediation",
    "planning-dialop-free": "planning",
}
"""Tasks of the leaderboard's picture: DialOp's own sizes, which people played."""
MARKS = {"random": ("x", GREY), "silence": ("|", ORANGE), "people": ("o", "#cc79a7"), "sharing": ("D", BLUE)}


def main(
    study: Annotated[Path | None, typer.Argument(help="Folder with results.json; by default the leaderboard.")] = None,
) -> None:
    """Draw the pictures and write the table of a study, or draw the picture of the leaderboard, from stored results."""
    if study is None:
        leaderboard(read_lines_of([BOARD / "leaderboard.jsonl"]), BOARD / "leaderboard.svg")
    else:
        results = read_model(study / "results.json", Results, "python -m bench.learn")
        show(results, study)


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
    with _drawn(path, MODES) as panels:
        for mode, panel in zip(MODES, panels, strict=True):
            panel.set_title(f"{mode} play")
            panel.set_xlabel("iterations")
            for arm, curves in results.curves.items():
                _draw_curves(panel, [[(one.iteration, one.rewards[mode]) for one in of] for of in curves.values()], arm)
            _draw_ends(panel, results, mode)
            _draw_lines(panel, results)
            panel.xaxis.get_major_locator().set_params(integer=True)
        _draw_scale(panels[0])


def words(results: Results, path: Path) -> None:
    """Draw each player's reward with messages as said and with swapped ones; the difference is the worth of words."""
    with _drawn(path, MODES) as panels:
        for mode, panel in zip(MODES, panels, strict=True):
            panel.set_title(f"{mode} play")
            for place, (name, player) in enumerate(results.players.items()):
                said, swapped = player.talking[mode]["reward"], player.swapped[mode]["reward"]
                look = {"color": COLOURS[name], "capsize": 3, "markersize": 7, "ls": "none"}
                _point(panel, place - 0.1, said, fmt="o", label="messages as said" if not place else None, **look)
                _point(panel, place + 0.1, swapped, fmt="o", mfc="none", label=None if place else "swapped", **look)
            panel.set_xticks(range(len(results.players)), list(results.players))
            _draw_lines(panel, results, only="silence")
        _draw_scale(panels[0])


def leaderboard(lines: Sequence[Line], path: Path) -> None:
    """Draw the rewards of scripted players, silence and people in DialOp's games."""
    with _drawn(path, ["all"], height=2.6) as (panel,):
        for row, task in enumerate(BOARDS):
            tasks = {line.player: line.tasks[task] for line in lines if task in line.tasks}
            board = tasks["random"]
            found = {
                "random": board.reward,
                "silence": board.silence,
                "people": board.people,
                "sharing": tasks["sharing"].reward,
            }
            for name, (mark, colour) in MARKS.items():
                if (one := found[name]) is not None and one.value is not None:
                    panel.plot(one.value, row, mark, color=colour, ms=11, mew=2.5, label=None if row else name)
        panel.set_yticks(range(len(BOARDS)), list(BOARDS.values()))
        panel.set_ylim(len(BOARDS) - 0.5, -0.5)
        panel.set_xlabel("reward")


@contextmanager
def _drawn(path: Path, panels: Sequence[str], height: float = 4.6) -> Iterator[Any]:
    """Yields matplotlib's axes to draw on; writes the file afterwards."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    colours = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), GREY)
    # A fixed salt and no date: the same results give the same file.
    look: Any = colours | {"svg.hashsalt": "selfplay", "svg.fonttype": "none", "font.size": 11}
    with mpl.rc_context(look):
        figure, axes = plt.subplots(
            1, len(panels), figsize=(10, height), sharey=True, layout="constrained", squeeze=False
        )
        yield list(axes[0])
        for panel in axes[0]:
            panel.grid(alpha=0.2)
            panel.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)


def _draw_scale(panel: Any) -> None:
    """Label the axis of rewards, and cut it where no reward can be; wide intervals go on outside of the picture."""
    low, high = panel.get_ylim()
    panel.set_ylim(max(low, -0.05), min(high, 1.05))
    panel.set_ylabel("reward on held-out states")


def _point(panel: Any, place: float, one: Interval, **look: Any) -> None:
    """Draw a value with its interval."""
    if one.value is not None and one.low is not None and one.high is not None:
        panel.errorbar(place, one.value, [[one.value - one.low], [one.high - one.value]], **look)


def _draw_curves(panel: Any, curves: Sequence[Sequence[tuple[int, float]]], arm: str) -> None:
    by_iteration: dict[int, list[float]] = {}
    for points in curves:
        panel.plot(*zip(*points, strict=True), color=COLOURS[arm], alpha=0.3, lw=0.8)
        for iteration, reward in points:
            by_iteration.setdefault(iteration, []).append(reward)
    panel.plot(by_iteration.keys(), [np.mean(of) for of in by_iteration.values()], color=COLOURS[arm], lw=2)


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
