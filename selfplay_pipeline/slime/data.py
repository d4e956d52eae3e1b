"""Game states as slime's prompt data: one JSON line per state, before any play."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import explain, write_lines
from selfplay_pipeline.core.folders import check_file
from selfplay_pipeline.core.reporting import Update, progress
from selfplay_pipeline.core.small_files import parse_json
from selfplay_pipeline.games.base import HELD_OUT, TRAIN, Game, GameSettings, State, state_rng
from selfplay_pipeline.games.registry import SHIPPED, make_game, stored_game_config
from selfplay_pipeline.generate.read_records import read_lines

UNUSABLE = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)
"""Errors that reading a row can raise if its values have unexpected types."""


@dataclass(frozen=True)
class DataJob:
    """The states to write: numbers `first_state` … `first_state + num_states - 1` of a seed.

    Attributes:
        held_out: Whether the states come from the seed space of `selfplay evaluate`, which training never draws from.

    Raises:
        UserError: The game is code of the user, which slime's processes would not find, and no data file may name.
    """

    game: GameSettings
    num_states: int
    seed: int
    first_state: int = 0
    held_out: bool = False

    def __post_init__(self) -> None:
        if self.game.name not in SHIPPED or self.game.as_stored() is not self.game:
            raise UserError(
                f"slime data: {self.game.name} plays code of your own, and slime plays only the games of the package; "
                "train it with `selfplay iterate`"
            )


def write_data(out: Path, job: DataJob) -> None:
    """Write the job's rows; the file is either complete or absent.

    Args:
        out: The file to write.
        job: The states to write.

    Raises:
        UserError: The configuration admits no state, or the file cannot be written.
    """
    check_file(out, "slime data")
    with progress("sampling game states", brief=True) as report:
        write_lines(out, _rows(job, report))


def _rows(job: DataJob, report: Update) -> Iterator[dict[str, Any]]:
    game = make_game(job.game)
    space, split = (HELD_OUT, "held-out") if job.held_out else (TRAIN, "train")
    for count in range(job.num_states):
        number = job.first_state + count
        state = game.sample_state(state_rng(job.seed, number, space))
        yield game_row(game, state, f"{split}-s{job.seed}-g{number:06d}")
        report(count + 1, job.num_states)


def game_row(game: Game, state: State, state_id: str) -> dict[str, Any]:
    """Returns one row: the policy's first prompt, and all data that its episodes need.

    slime passes only the prompt, label, metadata and tool keys to a rollout. The field `rules` of the metadata stores
    the rules that the prompt states.
    """
    opening = game.start(state).opening(0)
    return {
        "prompt": [
            {"role": "system", "content": opening.system},
            {"role": "user", "content": opening.observation},
        ],
        "metadata": {
            "state_id": state_id,
            "game_state": game.state_to_json(state),
            "ground_truth": game.solution(state),
            "optimal_score": game.best(state),
            "rules": game.config.model_dump(),
        },
    }


def game_of(metadata: dict[str, Any]) -> tuple[Game, State]:
    """Returns the rules and the state of a row.

    Raises:
        UserError: The rules or the state are missing or unusable.
    """
    data, written = metadata.get("game_state"), metadata.get("rules")
    for name, value in (("game_state", data), ("rules", written)):
        if not isinstance(value, dict):
            raise UserError(f"metadata.{name} is missing; `selfplay slime data` writes it, slime needs --metadata-key")
    try:
        rules = stored_game_config(written)
    except ValidationError as error:
        raise UserError(f"metadata.rules: {explain(error)}") from None
    game = make_game(rules)
    return game, game.state_from_json(data)


def check_data(path: Path) -> list[GameSettings]:
    """Check that every row can be played; returns the different rules of the rows.

    Raises:
        UserError: The file is missing or empty, or a row is bad; the message names file, line and field.
    """
    seen: dict[str, int] = {}
    rules: list[GameSettings] = []
    for number, line in read_lines(path, "`selfplay slime data` writes this file"):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            config, state_id = _check_row(row)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}:{number}: not JSON: {error.msg}") from None
        except UNUSABLE as error:
            raise UserError(f"{path}:{number}: not JSON that can be read: {error}") from None
        except UserError as error:
            raise UserError(f"{path}:{number}: {error}") from None
        if seen.setdefault(state_id, number) != number:
            raise UserError(f"{path}:{number}: state_id {state_id!r} is that of line {seen[state_id]} too")
        if config not in rules:
            rules.append(config)
    if not seen:
        raise UserError(f"{path}: holds no row; `selfplay slime data` writes this file")
    return rules


def _check_row(row: Any) -> tuple[GameSettings, str]:
    metadata = row.get("metadata") if isinstance(row, dict) else None
    if not isinstance(metadata, dict):
        raise UserError("field 'metadata' is missing; `selfplay slime data` writes it")
    try:
        game, state = game_of(metadata)
    except UNUSABLE as error:
        what = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise UserError(f"field 'metadata.game_state' is unusable ({what}); write the file again") from None
    state_id = metadata.get("state_id")
    if not state_id:
        raise UserError("field 'state_id' is missing; `selfplay slime data` writes it")
    if not isinstance(state_id, str):
        raise UserError(f"field 'state_id' is not text but {type(state_id).__name__}; write the file again")
    told = {name: metadata.get(name) for name in ("ground_truth", "optimal_score")}
    row_of_state = json.loads(json.dumps(game_row(game, state, state_id)))  # a solution may be a tuple
    if row.get("prompt") != row_of_state["prompt"]:
        raise UserError("field 'prompt' is not the prompt of seat 0 under these rules; write the file again")
    if told != {name: row_of_state["metadata"][name] for name in told}:
        raise UserError("fields 'ground_truth' and 'optimal_score' are not those of 'game_state'; write the file again")
    return game.config, state_id
