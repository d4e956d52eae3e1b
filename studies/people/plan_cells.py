"""Says which cells plans are made of, in files of episodes of matching: seen by the proposer, or by its partner alone.

A player that listens takes those cells of its partner that have high scores; another one takes them at random. On
states that pass the hard filter, the best plan by the own view takes cells with low scores.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from bench import command
from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.convert.replay import recorded_episodes
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.matching.game import MatchingGame
from selfplay_pipeline.games.matching.rules import Matching, MatchingState, best_matching, own_view_matching
from selfplay_pipeline.games.registry import make_game
from selfplay_pipeline.generate.records import EpisodeRecord
from selfplay_pipeline.metrics.bootstrap import Interval, Totals

FIGURES = (
    "proposer's cells",
    "their mean score",
    "partner's cells",
    "mean score of these",
)
"""Number of cells of a plan that the proposer sees, and of those that its partner alone sees; mean score of a cell."""
PLANS = ("played", "best by the own view", "best by both views")


def main(
    files: Annotated[list[Path], typer.Argument(help="Files of episodes of one board.")],
    config: Annotated[
        str, typer.Option(help="Built-in name or YAML file of the board.")
    ] = "studies/people/config.yaml",
) -> None:
    """Print, for each file, how many cells of the plans each view has, and their scores, with intervals over states.

    Beside the played plans are the best ones by the proposer's view and by both, where other cells count as the mean.
    Episodes without an agreement are left out.
    """
    game = make_game(load_config(config, {}).game)
    if not isinstance(game, MatchingGame):
        raise UserError(f"--config {config}: choose a board of matching")
    print("| file | plan | " + " | ".join(FIGURES) + " |")
    print("|---" * (len(FIGURES) + 2) + "|")
    for file in files:
        episodes = [one.record for one in recorded_episodes([file], game, lambda *shown: None)]
        if not any(episode.outcome.status in game.goals for episode in episodes):
            raise UserError(f"{file}: no episode in it ends with an agreement")
        for plan, found in figures(episodes, game).items():
            print(f"| {file} | {plan} | " + " | ".join(str(found[name]) for name in FIGURES) + " |")


def figures(episodes: list[EpisodeRecord], game: MatchingGame) -> dict[str, dict[str, Interval]]:
    """Returns the means by the names of `PLANS` and of `FIGURES`; each episode must be on a state of its own."""
    rows = [_rows(episode, game) for episode in episodes if episode.outcome.status in game.goals]
    found = {}
    for number, plan in enumerate(PLANS):
        counts = np.array([row[number] for row in rows], np.float64)  # (episodes, cells and sum of scores of each view)
        one = np.ones(len(counts))
        above, below = counts, np.stack([one, counts[:, 0], one, counts[:, 2]], axis=1)
        found[plan] = Totals(FIGURES, above, below).intervals()
    return found


def _rows(episode: EpisodeRecord, game: MatchingGame) -> list[list[int]]:
    """Returns the counts of each plan."""
    state = game.state_from_json(episode.state)
    seat = next(turn.seat for turn in reversed(episode.turns) if turn.proposal is not None)
    seen = state.masks[0] | state.masks[1]
    plans: tuple[Matching, ...] = (
        tuple((reviewer, paper) for reviewer, paper in episode.outcome.proposal),
        own_view_matching(state, seat, game.config.mean_score),
        best_matching(np.where(seen, state.table, game.config.mean_score))[0],
    )
    return [_counts(state, seat, plan) for plan in plans]


def _counts(state: MatchingState, seat: int, plan: Matching) -> list[int]:
    own = [pair for pair in plan if state.masks[seat][pair]]
    told = [pair for pair in plan if state.masks[1 - seat][pair] and not state.masks[seat][pair]]
    return [len(own), state.score(tuple(own)), len(told), state.score(tuple(told))]


if __name__ == "__main__":
    command.run(main)
