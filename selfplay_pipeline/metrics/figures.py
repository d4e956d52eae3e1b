"""What is measured of one episode of any game. Pure; every figure is a ratio of sums, so that `bootstrap` can resample
states.

Counts of what was said (messages, illegal actions, …) are of the evaluated player's seats alone; in self-play these
are all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from selfplay_pipeline.games.base import CUT, MESSAGE, Game, Turn
from selfplay_pipeline.games.figures import Figure, Measures
from selfplay_pipeline.games.registry import all_games
from selfplay_pipeline.games.tags import untagged
from selfplay_pipeline.metrics.bootstrap import Totals

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
FIGURES = (
    Figure("reward", "normalised reward", "higher", True),
    Figure("agreed", "agreement rate", "higher", True, "Agreement", "share of episodes agreed"),
    Figure("reward_if_agreed", "reward given agreement", "higher", True, mean=False),
    *(Figure(f"reward_{name}", f"reward when speaking {name}", "higher", True, mean=False) for name in ORDINALS),
    Figure("illegal", "illegal actions an episode", "lower", False, "Illegal actions", "illegal actions an episode"),
    Figure("messages", "messages an episode", None, False, "Messages", "messages an episode"),
    Figure("words", "words an episode"),
    Figure("words_per_message", "words a message", None, False, "Message length", "words a message", mean=False),
    Figure("turns", "turns an episode"),
)
"""Figures of any game; a game's own follow. `agreed` is the share of episodes that reached the game's goal."""


def figures_of(*games: Game) -> dict[str, Figure]:
    """All figures of these games by name, in the order in which they are shown; of all games if none is given.

    `illegal_…` figures, one a kind of error, stand behind `illegal`.
    """
    kinds = games or all_games()
    found: dict[str, Figure] = {}
    for figure in (*FIGURES, *(own for game in kinds for own in game.figures)):
        found.setdefault(figure.name, figure)
        if figure.name == "illegal":
            for kind in dict.fromkeys(kind for game in kinds for kind in (CUT, *game.error_kinds)):
                found[f"illegal_{kind}"] = Figure(f"illegal_{kind}", f"  {kind.replace('_', ' ')}")
    return found


def rows_of(columns: Sequence[Mapping[str, Any]], *games: Game) -> list[tuple[str, list[Any]]]:
    """A table of figures: the label of each that one of the columns has, and its values there or None.

    The labels are those of these games.

    A kind of error that never occurred has no row.
    """
    rows = []
    for name, figure in figures_of(*games).items():
        cells = [column.get(name) for column in columns]
        if any(cells) and (not name.startswith("illegal_") or any(cell and cell.value for cell in cells)):
            rows.append((figure.label, cells))
    return rows


def episode_figures(game: Game, record: Any, state: Any, seats: Sequence[int]) -> Measures:
    """All figures of one episode, those of any game first.

    Args:
        record: with `outcome` and `turns`, as `generate/records.py: EpisodeRecord` has them.
        seats: of the evaluated player.
    """
    rewards = [record.outcome.reward_of(seat) for seat in seats]
    # Equal rewards are not averaged, because rounding would change them.
    reward = rewards[0] if len(set(rewards)) == 1 else fmean(rewards)
    agreed = record.outcome.status in game.goals
    mine: list[Turn] = [turn for turn in record.turns if turn.seat in seats]
    messages = [untagged(turn.text) for turn in mine if turn.action == MESSAGE]
    words = sum(len(text.split()) for text in messages)
    errors = Counter(turn.error_kind for turn in record.turns if turn.seat in seats and turn.error_kind)
    figures: Measures = {
        "reward": (reward, 1),
        "agreed": (agreed, 1),
        "reward_if_agreed": (reward * agreed, agreed),
        "illegal": (sum(turn.error is not None for turn in record.turns if turn.seat in seats), 1),
        "messages": (len(messages), 1),
        "words": (words, 1),
        "words_per_message": (words, len(messages)),
        "turns": (len(mine), 1),
        **game.measure(state, record.turns, reward, seats),
        **{f"illegal_{kind}": (errors[kind], 1) for kind in dict.fromkeys((CUT, *game.error_kinds))},
    }
    if len(seats) == 1:
        for seat in range(game.num_seats):
            figures[f"reward_{ORDINALS[seat]}"] = (reward * (seats[0] == seat), seats[0] == seat)
    return figures


@dataclass
class Sums:
    """Figures of episodes, summed by figure and game state."""

    _sums: dict[str, dict[int, np.ndarray[tuple[int], np.dtype[np.float64]]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, state: int, figures: Measures) -> None:
        """Add one episode of the state of this number."""
        for name, pair in figures.items():
            by_state = self._sums.setdefault(name, {})
            by_state[state] = by_state.get(state, np.zeros(2)) + pair

    def totals(self, states: Iterable[int]) -> Totals:
        """The sums for these states; one without an episode counts nothing."""
        numbers, none = list(states), np.zeros(2)
        columns = {
            name: np.array([by_state.get(state, none) for state in numbers]).T for name, by_state in self._sums.items()
        }
        return Totals.of({name: (column[0], column[1]) for name, column in columns.items()})
