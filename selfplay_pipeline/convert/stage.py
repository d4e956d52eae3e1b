"""`selfplay convert` for a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.credit import check_credit
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.run import check_claim, run_convert
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.games.registry import make_game


def convert_episodes(
    config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False, write: bool = True
) -> Converted:
    """Write train.parquet, and val.parquet if a share is set aside, for a file of episodes.

    The same command converts the file anew, with the episodes that it has got since. Another one is refused.

    Args:
        skip_bad: leave out and report bad lines instead of stopping at the first.
        write: write the rows; else they are only counted.

    Raises:
        UserError: The credit is unknown, the folder is another command's or holds rows of another conversion, or as
            for `run_convert`.
    """
    check_credit(config)
    check_folder(out_dir, "convert")
    decided = decided_by(config, games, out_dir)
    check_claim(out_dir, decided)
    return run_convert(
        games,
        out_dir,
        val_fraction=config.convert.val_fraction,
        seed=config.seed,
        placebo=config.convert.placebo,
        credits_by=make_game(config.game) if config.convert.credit == "turn" else None,
        skip_bad=skip_bad,
        decided=decided,
        write=write,
    )


def plan_convert(config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False) -> str:
    """Returns what `convert` would do, in one line; reads all episodes and writes nothing."""
    found = convert_episodes(config, games, out_dir, skip_bad=skip_bad, write=False)
    aside = f"; {found.val_groups} to val.parquet" * bool(found.val_groups)
    bad = f"; {len(found.bad_lines)} bad lines are left out" * bool(found.bad_lines)
    placebo = ", rewards permuted within groups" * config.convert.placebo
    return (
        f"{games}: {found.episodes} episodes, {found.train_groups} groups to {out_dir / 'train.parquet'} (credit: "
        f"{found.credit}{placebo}){aside}{bad}"
    )


def decided_by(config: Config, games: Path, out_dir: Path) -> dict[str, Any]:
    """Returns all that decides the rows of a file of episodes; the file by its path from the output folder."""
    choice = config.convert
    decided = deciding(choice, "convert", "convert.") | {"games": os.path.relpath(games.resolve(), out_dir.resolve())}
    if choice.val_fraction or choice.placebo:
        decided["seed"] = config.seed
    if choice.credit == "turn":
        decided |= deciding(config.game, "convert", "game.")
    return decided
