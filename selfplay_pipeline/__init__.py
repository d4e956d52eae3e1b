"""Teach a language model to cooperate in dialogue by playing against itself.

    import selfplay_pipeline as sp

    config = sp.load_config("tiny", {"generate.num_episodes": 64})
    played = sp.play_episodes(config, "data/mine/games.jsonl", ["sharing"])
    frame = sp.episodes_frame("data/mine/games.jsonl")

`docs/python.md` lists all names and says which stay. Nothing is printed: lines go to the logger `selfplay_pipeline`,
bars to the reporter that a program installs (`core.reporting`).
"""

import sys

# `python -m` puts the working directory first, whose files must not run as code. No import may come before this.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"
"""Version of the package, which pyproject.toml takes from here; that of the newest part of CHANGELOG.md."""

if TYPE_CHECKING:
    from selfplay_pipeline.config.load import load_config as load_config
    from selfplay_pipeline.convert.stage import convert_episodes as convert_episodes
    from selfplay_pipeline.evaluate.run import EvaluationJob as EvaluationJob
    from selfplay_pipeline.evaluate.run import run_evaluate as run_evaluate
    from selfplay_pipeline.evaluate.states import sample_held_out as sample_held_out
    from selfplay_pipeline.frames import episodes_frame as episodes_frame
    from selfplay_pipeline.frames import rows_frame as rows_frame
    from selfplay_pipeline.frames import turns_frame as turns_frame
    from selfplay_pipeline.generate.read_records import read_episodes as read_episodes
    from selfplay_pipeline.generate.stage import generate_episodes as generate_episodes
    from selfplay_pipeline.iterate.loop import run_iterate as run_iterate
    from selfplay_pipeline.simple import evaluate_player as evaluate_player
    from selfplay_pipeline.simple import load_game as load_game
    from selfplay_pipeline.simple import play_episodes as play_episodes
    from selfplay_pipeline.simple import train_model as train_model
    from selfplay_pipeline.train.offline_stage import train_policy as train_policy
    from selfplay_pipeline.train.offline_stage import training_of as training_of

_MODULES = {
    "EvaluationJob": "evaluate.run",
    "convert_episodes": "convert.stage",
    "episodes_frame": "frames",
    "evaluate_player": "simple",
    "generate_episodes": "generate.stage",
    "load_config": "config.load",
    "load_game": "simple",
    "play_episodes": "simple",
    "read_episodes": "generate.read_records",
    "rows_frame": "frames",
    "run_evaluate": "evaluate.run",
    "run_iterate": "iterate.loop",
    "sample_held_out": "evaluate.states",
    "train_model": "simple",
    "train_policy": "train.offline_stage",
    "training_of": "train.offline_stage",
    "turns_frame": "frames",
}
"""Module of each public name; a module is imported when its name is first used."""
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
