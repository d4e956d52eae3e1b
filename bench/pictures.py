"""The picture of the leaderboard, and the canvas of all pictures, which suits light and dark pages.

python -m bench.pictures
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench import command
from selfplay_pipeline.evaluate.benchmark import Line, read_lines_of

BLUE, ORANGE, GREY = "#1f8fe0", "#e8711a", "#8c8c8c"
"""Colours of players that talk, of play without words, and of text and axes; all legible on white and on black."""
BOARD = Path("docs/results")
BOARDS = {
    "matching-people-free": "matching, 8×8",
    "mediation-dialop-free": "mediation",
    "planning-dialop-free": "planning",
}
"""Tasks of the leaderboard's picture: DialOp's own sizes, which people played."""
MARKS = {"random": ("x", GREY), "silence": ("|", ORANGE), "people": ("o", "#cc79a7"), "sharing": ("D", BLUE)}


def main() -> None:
    """Draw the leaderboard from its stored lines."""
    leaderboard(read_lines_of([BOARD / "leaderboard.jsonl"]), BOARD / "leaderboard.svg")


def leaderboard(lines: Sequence[Line], path: Path) -> None:
    """Draw the rewards of scripted players, silence and people in DialOp's games."""
    with drawn(path, ["all"], height=2.6) as (panel,):
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
def drawn(path: Path, panels: Sequence[str], height: float = 4.6) -> Iterator[Any]:
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


if __name__ == "__main__":
    command.run(main)
