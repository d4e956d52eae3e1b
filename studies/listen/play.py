"""Reads how the training play of each iteration went: rewards, what the speaker tells, whether the listener follows it.

python -m studies.listen.play data/learn_listen/self-play/seed_2 data/learn_listen/muted/seed_3
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from bench.pictures import GREY, drawn
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import SILENCE
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.history import history_of
from selfplay_pipeline.metrics.bootstrap import Totals
from studies.common.pictures import COLOURS
from studies.listen.exam import spoken_in

KEPT = ("mean_reward", "groups_without_signal", "log_prob_gap", "illegal_per_episode", "seconds")
"""Figures of an iteration that are kept, by their names in `metrics.jsonl`."""


def figures(episodes: Path) -> dict[str, Any]:
    """Returns figures of a file of episodes with their 95 % intervals over states.

    A told cell belongs to the best plan in half of the states by chance, and a plan that disregards messages contains a
    told cell in half of the states. States whose plans are worth the same are left out, and so are messages that tell
    no cell; of several cells the first counts.
    """
    found = defaultdict[str, dict[int, list[float]]](lambda: defaultdict(list))
    for record in read_episodes(episodes):
        found["reward"][record.group_index].append(record.outcome.reward_of(0))
        said = spoken_in(record)
        if record.turns[0].action != "message" or said is None or said.cell is None:
            continue
        own = {"score is true": said.true, "cell of the best plan": said.best}
        if proposal := record.outcome.proposal:
            own["proposal follows"] = said.cell in map(tuple, proposal)
        for name, value in own.items():
            found[name][record.group_index].append(value)
    return {
        name: Totals.of({name: (np.array([*map(sum, groups.values())], float), np.array([*map(len, groups.values())]))})
        .intervals()[name]
        .model_dump()
        for name, groups in found.items()
    }


def curve(run: RunDirectory) -> dict[str, list[dict[str, Any]]]:
    """Returns the figures of all played and trained iterations of a run, and its held-out rewards."""
    play, held_out, updates = list[dict[str, Any]](), list[dict[str, Any]](), 0
    for one in history_of(run.state):
        line = one.to_line()
        if one.played and one.trained:
            kept = {name: line[name] for name in KEPT}
            play.append({"iteration": one.number, "updates_before": updates, **kept, **figures(run.games(one.number))})
            updates += one.trained.updates or 0
        if one.evaluated:
            rewards = {"sampled": line["held_out_reward"], "greedy": line["held_out_greedy_reward"]}
            held_out.append({"iteration": one.number, **rewards})
    return {"play": play, "held_out": held_out}


def draw(curves: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Draw the training play and the held-out rewards of each run; two runs of an arm have the same colour."""
    with drawn(path, ["training play", "held-out states"]) as (play, held_out):
        told = set[str]()
        for name, of in curves.items():
            arm = name.partition(",")[0]
            points = [(one["iteration"], one["proposal follows"]["value"]) for one in of["play"]]
            play.plot(*zip(*points, strict=True), color=COLOURS[arm], label=None if arm in told else arm)
            told.add(arm)
            for mode, style in (("sampled", "--"), ("greedy", "-")):
                rewards = [(one["iteration"], one[mode]["value"]) for one in of["held_out"]]
                held_out.plot(*zip(*rewards, strict=True), style, color=COLOURS[arm], marker="o")
        silence = make_game(load_config("smollm2", {}).game).wordless[SILENCE].value
        held_out.axhline(silence, color=GREY, ls=":")
        place = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        held_out.annotate("silence", (1, silence), (4, -4), **place)
        play.set_title("share of proposals that follow the told cell")
        held_out.set_title("reward on 100 held-out states; dashed: sampled")
        for panel in (play, held_out):
            panel.set_xlabel("iteration")
            panel.xaxis.get_major_locator().set_params(integer=True)


def main() -> None:
    """Add the figures of some runs to the stored ones, and draw all; without a run, draw the stored ones again."""
    options = argparse.ArgumentParser(prog="python -m studies.listen.play", description=__doc__)
    options.add_argument("runs", type=Path, nargs="*", help="folders of `iterate`, ARM/seed_SEED")
    options.add_argument("--output", type=Path, default=Path("studies/listen/results/self_play.json"))
    asked = options.parse_args()
    curves = json.loads(asked.output.read_text()) if asked.output.exists() else {}
    for path in asked.runs:
        run = RunDirectory(path)
        run.load()
        curves[f"{path.parent.name}, {path.name.replace('_', ' ')}"] = curve(run)
    asked.output.write_text(json.dumps(curves, indent=1) + "\n")
    draw(curves, asked.output.with_suffix(".svg"))


if __name__ == "__main__":
    main()
