"""The reward that the policy is trained on, if the section `reward` of the configuration changes the game's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from selfplay_pipeline.config.identity import CONTENTS, contents
from selfplay_pipeline.config.schema import RewardConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.games.base import Outcome
from selfplay_pipeline.games.registry import game_named, imported, where_raised
from selfplay_pipeline.generate.records import EpisodeRecord

FUNCTION = "reward"
"""Name of the function in a user's file."""
LARGEST = 1e15
"""Largest absolute trained reward. Above it, float64 rounds differences of tenths, and float32 has no squares."""


def contents_of(config: RewardConfig) -> dict[str, str]:
    """Returns the content hash of the user's file by its key in records; empty without a file.

    Raises:
        UserError: The file does not exist.
    """
    return {} if config.path is None else {f"{CONTENTS}reward.path": contents(config.path, "reward.path")}


@dataclass(frozen=True)
class TrainedOutcome(Outcome):
    """Outcome of an episode as the user's function reads it.

    Attributes:
        tokens: Number of tokens that the policy sampled in each seat, thoughts included; 0 for other players.
    """

    tokens: tuple[int, ...]


class TrainedReward:
    """The user's function that gives the reward to train on."""

    def __init__(self, config: RewardConfig) -> None:
        """Import the user's file, which the configuration names.

        Raises:
            UserError: The file is missing, cannot be imported, or lacks the function.
        """
        self._config, self._function = config, _function_in(config)

    def of(self, record: EpisodeRecord) -> list[float]:
        """Returns the trained reward of each seat.

        Raises:
            UserError: The user's function fails, or returns something else than a finite number for each seat.
        """
        outcome = _outcome_of(record)
        state = game_named(record.game).state_from_json(record.state)
        where, episode = f"{self._config.path}: {FUNCTION}", f"episode {record.episode_id}"
        try:
            found: Any = self._function(state, record.turns, outcome)
            if isinstance(found, Iterator):
                found = [*found]  # which runs more of the user's code
        except (Exception, SystemExit) as error:
            raise UserError(f"{where}: {where_raised(error)}, for {episode}") from None
        try:
            if isinstance(found, Mapping | Set | str | bytes):  # their items are no rewards in the order of the seats
                raise TypeError
            rewards = [float(reward) for reward in found]
        except (TypeError, ValueError, OverflowError):
            raise UserError(f"{where}: returns {found!r} for {episode}; return one number for each seat") from None
        if len(rewards) != len(record.seats):
            raise UserError(
                f"{where}: returns {len(rewards)} rewards for {episode}, but the game has {len(record.seats)} seats; "
                "return one number for each seat"
            )
        for seat, reward in enumerate(rewards):
            if not math.isfinite(reward):
                raise UserError(f"{where}: returns {reward} for seat {seat} of {episode}; return finite numbers")
            if abs(reward) > LARGEST:
                raise UserError(
                    f"{where}: returns {reward:g} for seat {seat} of {episode}, but differences of rewards are lost "
                    f"beyond ±{LARGEST:g}; make them smaller"
                )
        return rewards


def own_reward(config: RewardConfig) -> TrainedReward | None:
    """Returns the user's function that gives the reward to train on; None if that is the game's own reward.

    Raises:
        UserError: The file is missing, cannot be imported, or lacks the function.
    """
    return TrainedReward(config) if config.changes else None


def _function_in(config: RewardConfig) -> Callable[..., Sequence[float]]:
    contents_of(config)
    function = getattr(imported(str(config.path)), FUNCTION, None)
    if not callable(function):
        raise UserError(f"{config.path}: defines no function `{FUNCTION}(state, turns, outcome)`; write it")
    found: Callable[..., Sequence[float]] = function
    return found


def _outcome_of(record: EpisodeRecord) -> TrainedOutcome:
    """Returns the outcome of an episode as its session gave it, with the policy's tokens."""
    kept, tokens = record.outcome, [0] * len(record.seats)
    for side in record.trajectories:
        tokens[side.seat] += sum(side.response_mask)
    return TrainedOutcome(
        status=kept.status,
        rewards=tuple(kept.reward_of(seat) for seat in range(len(record.seats))),
        score=kept.score,
        best=kept.best,
        decision=kept.proposal,
        num_turns=kept.num_turns,
        num_messages=kept.num_messages,
        num_proposals=kept.num_proposals,
        num_illegal=kept.num_illegal,
        tokens=tuple(tokens),
    )
