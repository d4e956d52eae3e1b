"""The states that an evaluation plays: held out from training by their seed space, or read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.evaluate.bootstrap import Interval, Totals
from selfplay_pipeline.games.matching.rules import MatchingConfig, MatchingGame, MatchingState, own_view_matching
from selfplay_pipeline.games.base import HELD_OUT, state_rng
from selfplay_pipeline.generate.records import read_lines
from selfplay_pipeline.small_files import parse_json

ABOUT_OWN_VIEW = (
    "own view is not the best play without messages: on the built-in 3×3, 4×4 and 8×8 boards, where the hard filter "
    "tells both players that their own plans are bad, that reaches 0.966 ± 0.006, 0.927 and 0.895 ± 0.012, so rewards "
    "up to there are no evidence of talk"
)
"""What must stand beside the line `own view`. Measured apart from this project, by sampling boards that agree with what
a player sees and with the filter: 250 states of 3×3, 32 of 8×8."""
DIALOPS_BOARD = ("size", "max_score", "p_visible", "scale_min", "scale_max", "hard_factor")
"""Fields that must be DialOp's where rewards are compared with those of its human pairs."""


@dataclass(frozen=True)
class StateSet:
    """States in a fixed order.

    Attributes:
        name: where they come from, for people.
        human: the normalised reward that a pair of humans reached on each state, where it is known.
    """

    name: str
    states: tuple[MatchingState, ...]
    human: tuple[float | None, ...] = ()

    def __len__(self) -> int:
        return len(self.states)

    @property
    def fingerprint(self) -> str:
        """Changes with anything that a player could see."""
        return hashlib.sha256(json.dumps([state.to_dict() for state in self.states]).encode()).hexdigest()


def held_out_states(
    game: MatchingGame,
    count: int,
    seed: int = 0,
    space: int = HELD_OUT,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> StateSet:
    """The first `count` states of a held-out seed space: no training of any seed draws from its streams."""
    states = []
    for number in range(count):
        states.append(game.sample_state(state_rng(seed, number, space)))
        on_progress(number + 1, count)
    return StateSet(f"{count} held-out states (seed {seed})", tuple(states))


def read_states(path: Path, game: MatchingGame) -> StateSet:
    """States in DialOp's field names, one a line; `proposal_reward` is taken for the score of a human pair.

    Raises:
        UserError: the file is missing or empty, or a line is bad; names file, line and field.
    """
    states, human = [], []
    for number, line in read_lines(path, "give a file of game states, one JSON object a line"):
        if not line.strip():
            continue
        try:
            data = parse_json(line)
            if not isinstance(data, dict):
                raise UserError("expected a JSON object")
            state = game.load_state(data)
            score = data.get("proposal_reward")
            states.append(state)
            if not (score is None or (isinstance(score, int | float) and 0 <= score <= state.best)):
                raise UserError(f"field 'proposal_reward': {score!r} is no score between 0 and {state.best}")
            human.append(None if score is None else score / state.best)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}") from None
        except (UserError, TypeError, ValueError, OverflowError) as error:
            raise UserError(f"{path}:{number}: {error}; fix the line or remove it") from None
        _check_fits(state, game, f"{path}:{number}")
    if not states:
        raise UserError(f"{path}: holds no game state; expected one JSON object a line")
    return StateSet(f"{len(states)} states of {path}", tuple(states), tuple(human))


def _check_fits(state: MatchingState, game: MatchingGame, where: str) -> None:
    config, top = game.config, int(state.table.max())
    if state.size != config.size or top > config.max_score:
        raise UserError(
            f"{where}: a board of size {state.size} with scores up to {top}, but the configuration's has size "
            f"{config.size} and scores up to {config.max_score}; give the configuration of these states "
            "(--config default has DialOp's board)"
        )
    for scale in state.scales:
        if not config.scale_min <= scale <= config.scale_max:
            raise UserError(f"{where}: scale {scale} is not in {config.scale_min:g}..{config.scale_max:g}")


def key_of(state: dict[str, Any]) -> str:
    """What makes two states the same problem: the table and both masks."""
    return hashlib.sha256(json.dumps([state["table"], state["mask1"], state["mask2"]]).encode()).hexdigest()


def states_in(games: Path) -> set[str]:
    """Keys of all states that a games file was played on."""
    return {key_of(json.loads(line)["state"]) for _, line in read_lines(games)}


def count_shared(states: StateSet, played: Iterable[str]) -> int:
    """How many of the states are among those played."""
    return len({key_of(state.to_dict()) for state in states.states} & set(played))


def references(states: StateSet, config: MatchingConfig) -> dict[str, Interval]:
    """Mean normalised rewards to compare with, on the same states.

    `random`: the expectation over all matchings; `own_view`: what one player plans from the scores that it sees, an
    unseen one counting as the mean, mean of both players (`ABOUT_OWN_VIEW` says what it is not);
    `optimum`: the best on the pooled view; `human`: as recorded, on the states that have it.
    """
    mean = (config.max_score + 1) // 2
    lines: dict[str, Sequence[float | None]] = {
        "random": [float(state.table.mean()) * state.size / state.best for state in states.states],
        "own_view": [float(np.mean([_alone(state, player, mean) for player in (0, 1)])) for state in states.states],
        "optimum": [1.0] * len(states),
    }
    if any(value is not None for value in states.human):
        lines["human"] = states.human
    totals = {
        name: ([0.0 if value is None else value for value in values], [float(value is not None) for value in values])
        for name, values in lines.items()
    }
    return Totals.of(totals).intervals()


def is_dialops_board(config: MatchingConfig) -> bool:
    """Whether rewards can be compared with those of DialOp's human pairs."""
    return all(getattr(config, name) == getattr(MatchingConfig(), name) for name in DIALOPS_BOARD)


def _alone(state: MatchingState, player: int, mean: float) -> float:
    return state.score(own_view_matching(state, player, mean)) / state.best
