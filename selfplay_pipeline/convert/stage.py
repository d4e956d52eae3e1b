"""`selfplay convert` for a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from selfplay_pipeline.config.identity import deciding
from selfplay_pipeline.config.schema import Config
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.reward import contents_of, own_reward
from selfplay_pipeline.convert.run import check_claim, run_convert
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.small_files import File


def convert_episodes(config: Config, games: File, out_dir: File, *, skip_bad: bool = False) -> Converted:
    """Convert episodes to train.parquet, and to val.parquet if `val_fraction` is above 0; returns the counts.

    The same command repeats the conversion, with new episodes of the file. A conversion with other settings in the same
    folder is rejected.

    Args:
        config: The configuration.
        games: The file of episodes.
        out_dir: Folder of the written files.
        skip_bad: Whether to skip and report invalid lines instead of stopping at the first.

    Raises:
        UserError: The folder belongs to another command or conversion, or `run_convert` rejects the episodes.
    """
    games, out_dir = Path(games), Path(out_dir)
    check_folder(out_dir, "convert")
    reward = own_reward(config.reward)  # its code runs before it is hashed
    decided = decided_by(config, games, out_dir)
    check_claim(out_dir, decided)
    return run_convert(
        games,
        out_dir,
        val_fraction=config.convert.val_fraction,
        seed=config.seed,
        placebo=config.convert.placebo,
        reward=reward,
        skip_bad=skip_bad,
        decided=decided,
    )


def decided_by(config: Config, games: Path, out_dir: Path) -> dict[str, Any]:
    """Returns all settings that decide the rows, with the path of the episodes relative to the output folder."""
    choice = config.convert
    decided = (
        deciding(choice, "convert", "convert.")
        | contents_of(config.reward)
        | {"games": os.path.relpath(os.path.realpath(games), os.path.realpath(out_dir))}
    )
    if choice.val_fraction or choice.placebo:
        decided["seed"] = config.seed
    return decided
