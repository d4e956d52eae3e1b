"""States of an online training as parquet rows, which verl's dataset passes to the agent loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from selfplay_pipeline.convert.rows import AGENT_NAME
from selfplay_pipeline.core.files import locked, replacing
from selfplay_pipeline.core.folders import own_folder
from selfplay_pipeline.core.reporting import progress
from selfplay_pipeline.games.base import MONITOR, TRAIN, Game, GameSettings, State, state_rng
from selfplay_pipeline.games.registry import make_game

Perspectives = Literal["both", "one"]
"""Training rows of an episode: one for each seat (`both`), or only the row of `seat` (`one`)."""

TRAIN_SPLIT, MONITOR_SPLIT = "train", "monitor"
"""Values of `extra_info.split` in train.parquet and test.parquet."""

SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "agent_name": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "game_state": pa.string(),
        "state_id": pa.string(),
        "seat": pa.int64(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct(
            {"index": pa.int64(), "split": pa.string(), "perspectives": pa.string(), "seed": pa.int64()}
            | {"rules": pa.string()}
        ),
    }
)
"""Columns of train.parquet and test.parquet.

`prompt` is the first prompt of the player in `seat`, `extra_info.index` the number of the state, and
`extra_info.rules` the game's configuration as JSON.
"""


def write_games(
    out: Path,
    config: GameSettings,
    *,
    num_train: int,
    num_test: int,
    seed: int,
    test_seed: int,
    per_seat: bool = False,
) -> tuple[Path, Path]:
    """Sample states, write `train.parquet` and `test.parquet`, and return the two files.

    Args:
        out: The output folder.
        config: The game.
        num_train: Number of training states.
        num_test: Number of validation states.
        seed: Seed of the training states, as for `generate`.
        test_seed: Seed of the validation states. They come from the seed space of the monitor states of `iterate`, so
            that `evaluate` still has unseen states after a training was selected on them.
        per_seat: Whether to write one row for each seat of a state instead of one for the state.

    Raises:
        UserError: The configuration admits no state.
    """
    game = make_game(config)
    files = out / "train.parquet", out / "test.parquet"
    done, rows = 0, {path: list[dict[str, Any]]() for path in files}
    parts = zip(
        files, (num_train, num_test), (TRAIN, MONITOR), (seed, test_seed), (TRAIN_SPLIT, MONITOR_SPLIT), strict=True
    )
    with progress("sampling game states", brief=True) as report:
        for path, count, space, space_seed, split in parts:
            for number in range(count):
                state = game.sample_state(state_rng(space_seed, number, space))
                # Each monitor state is one row in any layout, so that an episode is also counted if a player took no
                # turn.
                rows[path] += game_rows(game, state, number, space_seed, split, per_seat and space == TRAIN)
                done += 1
                report(done, num_train + num_test)
    with locked(out / ".games.lock", f"folder {out}"):
        own_folder(out, "game states")
        for path in files:
            with replacing(path) as temporary:
                pq.write_table(pa.Table.from_pylist(rows[path], schema=SCHEMA), temporary)
    return files


def game_rows(game: Game, state: State, number: int, seed: int, split: str, per_seat: bool) -> list[dict[str, Any]]:
    """Returns the rows of one state: a single row, or one per seat."""
    session = game.start(state)
    rows = []
    for seat in range(len(game.roles) if per_seat else 1):
        opening = session.opening(seat)
        rows.append(
            {
                "data_source": game.data_source,
                "agent_name": AGENT_NAME,
                "prompt": [
                    {"role": "system", "content": opening.system},
                    {"role": "user", "content": opening.observation},
                ],
                "game_state": json.dumps(game.state_to_json(state), separators=(",", ":")),
                "state_id": f"{split}-s{seed}-g{number:06d}",
                "seat": seat,
                "reward_model": {"style": "rule", "ground_truth": str(game.best(state))},
                "extra_info": {
                    "index": number,
                    "split": split,
                    "perspectives": "one" if per_seat else "both",
                    "seed": seed,
                    "rules": game.config.model_dump_json(),
                },
            }
        )
    return rows
