"""`selfplay convert` for a configuration."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.config import Config
from selfplay_pipeline.convert.credit import check_credit
from selfplay_pipeline.convert.result import Converted
from selfplay_pipeline.convert.run import count_convert, run_convert
from selfplay_pipeline.core.folders import check_folder
from selfplay_pipeline.core.terminal.progress import progress
from selfplay_pipeline.games.registry import make_game


def convert_episodes(config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False) -> Converted:
    """Write train.parquet, and val.parquet if a share is set aside, for a file of episodes."""
    _check(config, out_dir)
    return run_convert(
        games,
        out_dir,
        val_fraction=config.convert.val_fraction,
        seed=config.seed,
        placebo=config.convert.placebo,
        credits_by=make_game(config.game) if config.convert.credit == "turn" else None,
        skip_bad=skip_bad,
        bar=progress,
    )


def plan_convert(config: Config, games: Path, out_dir: Path, *, skip_bad: bool = False) -> str:
    """Returns what `convert` would do, in one line; reads all episodes and writes nothing."""
    _check(config, out_dir)
    found = count_convert(
        games,
        val_fraction=config.convert.val_fraction,
        seed=config.seed,
        credits_by=make_game(config.game) if config.convert.credit == "turn" else None,
        skip_bad=skip_bad,
        bar=progress,
    )
    aside = f"; {found.val_groups} to val.parquet" * bool(found.val_groups)
    bad = f"; {len(found.bad_lines)} bad lines are left out" * bool(found.bad_lines)
    placebo = ", rewards permuted within groups" * config.convert.placebo
    return (
        f"{games}: {found.episodes} episodes, {found.train_groups} groups to {out_dir / 'train.parquet'} (credit: "
        f"{found.credit}{placebo}){aside}{bad}"
    )


def _check(config: Config, out_dir: Path) -> None:
    check_credit(config)
    check_folder(out_dir, "convert")
