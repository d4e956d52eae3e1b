"""Episodes, turns and rows as pandas data frames, for group-by, pivot tables and plots of one's own."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from selfplay_pipeline.config.schema import RewardConfig
from selfplay_pipeline.convert.parquet import read_table
from selfplay_pipeline.convert.reward import TrainedReward, own_reward
from selfplay_pipeline.core.small_files import File
from selfplay_pipeline.games.registry import find
from selfplay_pipeline.generate.read_records import read_episodes
from selfplay_pipeline.generate.records import EpisodeRecord

ROWS_AT_ONCE = 4_096
"""Number of rows that become a part of a frame at once."""
KEYS = {"episode_id": "str", "group_index": "int64", "episode": "int64"}
"""Columns on which the frames of one file can be merged."""
OUTCOME = {
    "status": "str", "normalized_reward": "float64", "score": "float64", "best": "float64",
    "num_turns": "int64", "num_messages": "int64", "num_proposals": "int64", "num_illegal": "int64",
}  # fmt: skip
EPISODES = {
    **KEYS, "game": "str", "players": "str", "checkpoint": "str", "iteration": "Int64", **OUTCOME,
    "sampled_tokens": "int64", "prompt_tokens": "int64", "cached_tokens": "int64",
}  # fmt: skip
"""Types of the columns of `episodes_frame`, without the rewards of single seats."""
TURN = {
    "action": "str",
    "text": "str",
    "proposal": "object",
    "error": "str",
    "error_kind": "str",
    "finish_reason": "str",
}
TURNS = {**KEYS, "turn": "int64", "seat": "int64", "player": "str", "trained": "bool", **TURN}
"""Types of the columns of `turns_frame`."""


def episodes_frame(path: File, *, game: str | None = None, reward: File | None = None) -> pd.DataFrame:
    """Returns a frame with one row per episode of a file, in the file's order.

    Args:
        path: File of episodes.
        game: Game of your own that was played, by its file or name, as `load_game` takes it; its code is run.
        reward: Python file of a reward of your own, as `reward.path` names it; its code is run.

    Columns:
        episode_id: Name of the episode (str).
        group_index: Number of the game state; episodes of one state form a group (int).
        episode: Number of the episode within its group (int).
        game: Name of the game (str).
        players: Names of the players by seat, joined by commas (str).
        checkpoint: Path of the trained checkpoint, else of another checkpoint that played; missing without checkpoints
            (str).
        iteration: Iteration of the run that played the episode; 0 outside of a run (int; missing without checkpoints).
        status: End of the episode: one of the game's goals, or a value of `games.base.Status` (str).
        normalized_reward: Mean reward of all seats, from 0 to 1 (float).
        score, best: Score of the outcome and best possible score, in points of the game (float).
        num_turns, num_messages, num_proposals, num_illegal: Numbers of turns by kind (int).
        sampled_tokens: Number of tokens that the trained seats sampled (int).
        prompt_tokens, cached_tokens: Numbers of prompt tokens sent to the engine, and of those found in its prefix
            cache (int).
        reward_0, reward_1, ...: Reward of each seat, from 0 to 1 (float; missing if a game has fewer seats).
        trained_reward_0, trained_reward_1, ...: What the function in `reward` returns for each seat; only with it
            (float).

    Raises:
        UserError: The file is missing, or a line is invalid; the message names file, line and field. The game or the
            reward cannot be imported, or fails.
    """
    _find(game)
    trained = own_reward(RewardConfig(path=None if reward is None else os.path.realpath(reward)))
    return _frame((_episode(record, trained) for record in read_episodes(Path(path))), EPISODES)


def turns_frame(path: File, *, game: str | None = None) -> pd.DataFrame:
    """Returns a frame with one row per turn of a file of episodes, in their order.

    Args:
        path: File of episodes.
        game: Game of your own that was played, by its file or name, as `load_game` takes it; its code is run.

    Columns:
        episode_id, group_index, episode: As in `episodes_frame`.
        turn: Number of the turn within its episode, from 0 (int).
        seat: Number of the seat that acted, from 0 (int).
        player: Name of the player in that seat (str).
        trained: Whether the seat's turns are training data (bool).
        action: Parsed action: one of the game's actions, or `invalid` (str).
        text: Text of the turn (str).
        proposal: Proposal of a legal action, in a format defined by the game (object; missing without one).
        error, error_kind: Reason for rejecting an illegal action, and its category (str; missing for legal ones).
        finish_reason: End of the sampling: `stop`, `length` if it was cut, `scripted`, or `person` (str).

    Raises:
        UserError: The file is missing, or a line is invalid; the message names file, line and field. The game cannot be
            imported.
    """
    _find(game)
    return _frame((row for record in read_episodes(Path(path)) for row in _turns(record)), TURNS)


def rows_frame(path: File) -> pd.DataFrame:
    """Returns a frame with one row per row of train.parquet or val.parquet.

    Columns are those of the file (`convert.rows.SCHEMA`). Fields of `reward_model` and `extra_info` are columns of
    their own: `extra_info.index` is the group index, `reward_model.normalized_reward` the reward from 0 to 1. Token
    ids, masks and log-probs (in nats) are arrays.

    Raises:
        UserError: The file is missing, damaged or of another format.
    """
    return read_table(Path(path)).flatten().to_pandas()


def _find(game: str | None) -> None:
    """Import a game of the user's, if one is named, so that its episodes can be read."""
    if game is not None:
        find(game)


def _frame(rows: Iterable[dict[str, Any]], types: Mapping[str, str]) -> pd.DataFrame:
    """Returns the rows as a frame; a part at a time, because a row as a dictionary is many times as large."""
    parts = [pd.DataFrame(part).astype(dict(types)) for part in _batched(rows, ROWS_AT_ONCE)]
    found = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=[*types]).astype(dict(types))
    return found.reindex(columns=[*types, *found.columns.difference([*types])])


def _batched(rows: Iterable[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    """Yields the rows in lists of `size`; the last list may be shorter."""
    rest = iter(rows)
    while part := list(islice(rest, size)):
        yield part


def _keys(record: EpisodeRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in KEYS}


def _episode(record: EpisodeRecord, trained: TrainedReward | None) -> dict[str, Any]:
    policies = [seat.policy for seat in sorted(record.seats, key=lambda seat: not seat.trained) if seat.policy]
    return {
        **_keys(record),
        "game": record.game,
        "players": ", ".join(seat.name for seat in record.seats),
        "checkpoint": policies[0].checkpoint if policies else None,
        "iteration": policies[0].iteration if policies else None,
        **{name: getattr(record.outcome, name) for name in OUTCOME},
        "sampled_tokens": sum(sum(trajectory.response_mask) for trajectory in record.trajectories),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        **{f"reward_{seat}": record.outcome.reward_of(seat) for seat in range(len(record.seats))},
        **({f"trained_reward_{seat}": one for seat, one in enumerate(trained.of(record))} if trained else {}),
    }


def _turns(record: EpisodeRecord) -> Iterable[dict[str, Any]]:
    for number, turn in enumerate(record.turns):
        player = record.seats[turn.seat]
        yield {
            **_keys(record),
            "turn": number,
            "seat": turn.seat,
            "player": player.name,
            "trained": player.trained,
            **{name: getattr(turn, name) for name in TURN},
        }
