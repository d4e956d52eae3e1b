"""Reads how the training play of each iteration went: rewards, what the speaker tells, whether the listener follows it.

python -m studies.listen.play data/learn_listen/self-play/seed_2 --output play.json
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.games.matching.mentions import told_cells
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.iterate.folder import RunDirectory
from selfplay_pipeline.iterate.history import history_of
from selfplay_pipeline.metrics.bootstrap import Totals
from studies.listen.exam import plan_of, table_of

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
        table, names = table_of(record.state), record.state
        plans = [table.worth(plan) for plan in (0, 1)]
        told = list(told_cells(record.turns[0].text, names["papers"], names["reviewers"]).items())
        if plans[0] == plans[1] or record.turns[0].action != "message" or not told:
            continue
        (row, column), score = told[0]
        own = {"score is true": table.scores[row][column] == score,
               "cell of the best plan": plans[plan_of((row, column))] > min(plans)}  # fmt: skip
        if proposal := record.outcome.proposal:
            own["proposal follows"] = [row, column] in [list(pair) for pair in proposal]
        for name, value in own.items():
            found[name][record.group_index].append(value)
    return {
        name: Totals.of({name: (np.array([*map(sum, groups.values())], float), np.array([*map(len, groups.values())]))})
        .intervals()[name]
        .model_dump()
        for name, groups in found.items()
    }


def curve(run: RunDirectory) -> list[dict[str, Any]]:
    """Returns the figures of all played and trained iterations of a run, with the number of updates before each."""
    lines, updates = [], 0
    for one in history_of(run.state):
        if one.played and one.trained:
            line = one.to_line()
            kept = {name: line[name] for name in KEPT}
            lines.append({"iteration": one.number, "updates_before": updates, **kept, **figures(run.games(one.number))})
            updates += one.trained.updates or 0
    return lines


def main() -> None:
    """Write the figures of a run."""
    options = argparse.ArgumentParser(prog="python -m studies.listen.play", description=__doc__)
    options.add_argument("run", type=Path)
    options.add_argument("--output", type=Path, required=True)
    asked = options.parse_args()
    run = RunDirectory(asked.run)
    run.load()
    asked.output.write_text(json.dumps(curve(run), indent=1) + "\n")


if __name__ == "__main__":
    main()
