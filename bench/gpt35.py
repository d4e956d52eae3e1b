"""Scores GPT-3.5's self-play on DialOp's matching anew: the games of github.com/tejas1995/dialop.

That repository names no licence, so its games are read from a folder of yours (its folder `outputs`) and not kept here.
Its stored scores fit the agreed proposals in only 2 games: its text environment reads other assignments from the
proposals. Here the proposal that the closing [accept] answers is read by our rules, and counts 0 if it is no matching.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import numpy as np
import typer

from bench import command
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import ParseError
from selfplay_pipeline.games.matching.mentions import Cells
from selfplay_pipeline.games.matching.names import PAPERS, REVIEWERS
from selfplay_pipeline.games.matching.proposals import Matching, short
from selfplay_pipeline.games.matching.rules import MatchingConfig, best_matching
from selfplay_pipeline.games.matching.text import parse_action

BOARD = MatchingConfig()
"""DialOp's board."""
ROWS, COLUMNS = REVIEWERS[: BOARD.size], PAPERS[: BOARD.size]
PLAYERS = ("PLAYER-1", "PLAYER-2")
SCALES = np.linspace(BOARD.scale_min, BOARD.scale_max, 90_001)
RESAMPLES = 10_000


def main(
    folder: Annotated[Path, typer.Argument(help="The folder `outputs` of a clone of github.com/tejas1995/dialop.")],
) -> None:
    """Print agreement, reward and the stored scores, with 95 % intervals over games."""
    games = different_games(folder)
    rewards = [reward_of(game) for game in games]
    agreed = [reward for reward in rewards if reward is not None]
    print(f"{len(games)} games, {len(agreed)} agreed on a matching")
    print(f"agreement            {with_interval([reward is not None for reward in rewards])}")
    print(f"reward               {with_interval([reward or 0.0 for reward in rewards])}")
    print(f"reward where agreed  {with_interval(agreed)}")
    print(f"reward as stored     {with_interval([game['score'] for game in games])}")


def different_games(folder: Path) -> list[dict[str, Any]]:
    """Returns the games of all files, each dialogue once, since the files overlap.

    Raises:
        UserError: The folder has no games.
    """
    files = sorted(folder.glob("*_optimization_*.json"))
    games = {str(game["dialog_history"]): game for path in files for game in json.loads(path.read_text())}
    if not games:
        raise UserError(f"{folder}: no file *_optimization_*.json with games; name the folder `outputs` of the clone")
    return list(games.values())


def reward_of(game: dict[str, Any]) -> float | None:
    """Returns the agreed share of the best score; None if the accepted proposal is no matching."""
    matching = accepted(game["dialog_history"])
    if matching is None:
        return None
    table, best = true_scores(game), game["best_assignment_reward"]
    return float(sum(table[pair] for pair in matching) / best)


def accepted(dialogue: list[str]) -> Matching | None:
    """Returns the matching that the last turn accepts: the other player's last proposal, as our rules read it."""
    turns = [line.partition(": ")[::2] for line in dialogue]
    last, text = turns[-1]
    if not text.strip().startswith("[accept]"):
        return None
    proposal = [text for player, text in turns if player != last and "[propose]" in text][-1]
    try:
        return parse_action(proposal, COLUMNS, ROWS).proposal
    except ParseError:
        return None


def true_scores(game: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Returns the table of scores, shape (rows, columns), reconstructed from both views and the scales that explain
    them.

    The games do not store the table itself.

    Raises:
        ValueError: The views and the stored best score do not determine exactly one table.
    """
    one, two = (list(explanations(displayed(game["player_observations"][player]))) for player in PLAYERS)
    found = []
    for first in one:
        for second in two:
            if all(first[cell] == second[cell] for cell in first.keys() & second.keys()):
                table = np.full((BOARD.size, BOARD.size), round(BOARD.mean_score), np.int64)
                for cell, score in (first | second).items():
                    table[cell] = score
                found += [table] * (best_matching(table)[1] == game["best_assignment_reward"])
    if len(found) != 1:
        raise ValueError(f"{len(found)} tables fit the views of {game['player_observations']}")
    return found[0]


def displayed(view: str) -> Cells:
    """Returns the cells of a view as its player read it: `Ava Li: 840 for BLEU, 639 for GloVe` on a line."""
    columns = [short(paper) for paper in COLUMNS]
    lines = {row: match[1] for row, name in enumerate(ROWS) if (match := re.search(rf"{name}:([^\n]*)", view))}
    return {
        (row, columns.index(paper)): int(score)
        for row, line in lines.items()
        for score, paper in re.findall(r"(\d+) for (\w+)", line)
    }


def explanations(cells: Cells) -> list[Cells]:
    """Returns all true scores that some scale displays as these cells: `int(score × scale)`."""
    shown = np.array(list(cells.values()))
    scores = np.ceil(shown / SCALES[:, None] - 1e-9)
    fits = (np.floor(scores * SCALES[:, None] + 1e-9) == shown) & (scores <= BOARD.max_score)
    return [dict(zip(cells, row.astype(int).tolist(), strict=True)) for row in np.unique(scores[fits.all(1)], axis=0)]


def with_interval(values: list[float] | list[bool]) -> str:
    """Returns the mean with its 95 % bootstrap interval over games."""
    drawn = np.random.default_rng(0).choice(np.array(values, float), (RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{fmean(values):.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    command.run(main)
