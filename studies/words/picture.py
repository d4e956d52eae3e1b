"""The picture of the study: held-out reward over the iterations, drawn from its stored results.

python -m studies.words.picture
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import command
from bench.pictures import BLUE, GREY, drawn
from studies.common.arms import MUTED, PLACEBO
from studies.common.pictures import COLOURS, draw_curves, draw_scale

RESULTS = Path("studies/words/results")
PANELS = {
    "held_out_reward": "words drawn by chance (sampled)",
    "held_out_greedy_reward": "always the likeliest word (greedy)",
}
"""Titles of the panels by the figure that they show."""
ARMS = {
    "self": (BLUE, "self-play"),
    "muted": (COLOURS[MUTED], "muted"),
    "placebo": (COLOURS[PLACEBO], "shuffled rewards"),
}
"""Colour and label of the trainings that are drawn, by the beginning of their names."""


def main() -> None:
    """Draw the picture."""
    draw(json.loads((RESULTS / "results.json").read_text())["trainings"], RESULTS / "learning.svg")


def draw(trainings: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the curves of self-play and its controls, with the silence line.

    Args:
        trainings: Held-out figures by training, such as `self_4`, and by iteration.
        path: File of the picture.
    """
    with drawn(path, [*PANELS], height=3.8) as panels:
        for (figure, title), panel in zip(PANELS.items(), panels, strict=True):
            panel.set_title(title)
            panel.set_xlabel("iterations of training")
            for arm, (colour, label) in ARMS.items():
                seeds = [by_iteration for name, by_iteration in trainings.items() if name.startswith(f"{arm}_")]
                curves = [[(int(number), one[figure]["value"]) for number, one in seed.items()] for seed in seeds]
                draw_curves(panel, curves, colour, f"{label}, {len(seeds)} trainings")
            silence = next(one for one in trainings.values() if one)["0"]["wordless"]["silence"]["value"]
            panel.axhline(silence, color=GREY, lw=1.4, ls="--", label="best without words")
            panel.xaxis.get_major_locator().set_params(integer=True)
        draw_scale(panels[0])


if __name__ == "__main__":
    command.run(main)
