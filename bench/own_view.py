"""Compares proposals with the plan of the proposer's own view, in files of episodes of matching.

A player that ignores messages proposes the plan of its own view about as often where this plan is not the best one as
where it is: a little less often, since clear views are right more often. Muted training shows how much less.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import permutations
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray

from bench import command
from selfplay_pipeline.config.identity import differences, in_words
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import recorded_episodes
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import Matching
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.games.silence import settings_of
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.bootstrap import Interval, Totals
from selfplay_pipeline.report.sources import EpisodesFile

LARGEST = 5
"""Largest size of a board: all plans of a state are compared."""
FIGURES = ("reward", "reward of own view", "own view where best", "own view where not best")


def main(
    files: Annotated[list[Path], typer.Argument(help="Files of episodes of one board; each gives a line.")],
    config: Annotated[str, typer.Option(help="Built-in name or YAML file of the board.")] = "bench/language.yaml",
) -> None:
    """Print the mean reward, that of plans by the own view on the same states, and how often these plans are proposed.

    The last two columns are shares of proposals: where the own view's plan is the best one, and where it is not. States
    with several best plans, by the own view or in truth, are left out of them. Intervals are of 95 % over states.
    """
    game = make_game(load_config(config, {}).game)
    if not isinstance(game, MatchingGame) or game.config.size > LARGEST:
        raise UserError(f"--config {config}: choose a board of matching with at most {LARGEST} papers")
    print("| file | episodes | " + " | ".join(FIGURES) + " |")
    print("|---" * (len(FIGURES) + 2) + "|")
    for file in files:
        played = EpisodesFile(file, "other", "").game_config()
        if played is not None and (differ := differences(settings_of(played), settings_of(game.config))):
            raise UserError(f"{file} was played with {in_words(differ)}; give the --config of these episodes")
        episodes = [one.record for one in recorded_episodes([file], game, lambda *shown: None)]
        if not episodes:
            raise UserError(f"{file}: holds no episode; `selfplay evaluate` writes some")
        found = figures(episodes, game)
        print(f"| {file} | {len(episodes)} | " + " | ".join(str(found[name]) for name in FIGURES) + " |")


def figures(episodes: list[EpisodeRecord], game: MatchingGame) -> dict[str, Interval]:
    """Returns the means of the episodes by the names of `FIGURES`, with intervals over states."""
    columns = defaultdict[int, list[list[float]]](list)
    for episode in episodes:
        columns[episode.group_index].append(_row(episode, game))
    sums = np.array([np.sum(rows, axis=0) for rows in columns.values()])
    above, below = sums[:, : len(FIGURES)], sums[:, len(FIGURES) :]
    return Totals(FIGURES, above, below).intervals()


def _row(episode: EpisodeRecord, game: MatchingGame) -> list[float]:
    """Returns the values of `FIGURES`, then their weights; a share of an episode that has none has weight 0."""
    state = game.state_from_json(episode.state)
    proposals = [turn for turn in episode.turns if turn.proposal is not None]
    seat = proposals[-1].seat if proposals else 1
    plans = _best_plans(np.where(state.masks[seat], state.table, game.config.mean_score))
    own = float(np.mean([state.score(plan) for plan in plans])) / state.best
    row, weights = [episode.outcome.normalized_reward, own, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0]
    if proposals and len(plans) == len(_best_plans(state.table)) == 1:
        column = 2 if own == 1 else 3
        weights[column] = 1.0
        row[column] = float({(r, p) for r, p in proposals[-1].proposal or []} == set(plans[0]))
    return row + weights


def _best_plans(scores: NDArray[np.int64] | NDArray[np.float64]) -> list[Matching]:
    plans = [tuple(enumerate(papers)) for papers in permutations(range(len(scores)))]
    values = [float(sum(scores[pair] for pair in plan)) for plan in plans]
    return [plan for plan, value in zip(plans, values, strict=True) if np.isclose(value, max(values))]


if __name__ == "__main__":
    command.run(main)
