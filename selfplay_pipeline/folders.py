"""Which command a folder belongs to, so that no other one writes into it."""

from __future__ import annotations

import re
from pathlib import Path

from selfplay_pipeline.errors import UserError
from selfplay_pipeline.files import read_json

HOLDS = {
    "generate": "games of `selfplay generate`",
    "convert": "rows of `selfplay convert`",
    "train": "a training of `selfplay train`",
    "iterate": "a run of `selfplay iterate`",
    "games": "game states of `selfplay games`",
    "train-online": "a training of `selfplay train-online`",
    "evaluate": "an evaluation of `selfplay evaluate`",
    "crossplay": "plays of `selfplay crossplay`",
    "model": "a model",
}
"""What commands leave in a folder."""
STAGES = {"generate", "convert", "train"}
"""Commands that may share a folder: the stages of one iteration."""


def check_folder(folder: Path, command: str) -> None:
    """Whether a command may write into a folder: it is nobody's yet, or the command's own, or shared by stages.

    Raises:
        UserError: another command has written there.
    """
    makers = made_by(folder)
    if makers and not makers & (STAGES if command in STAGES else {command}):
        listed = " and ".join(HOLDS[maker] for maker in sorted(makers))
        raise UserError(f"{folder} holds {listed}; `selfplay {command}` needs its own: give another --output")


def made_by(folder: Path) -> set[str]:
    """The commands that have written into a folder, told by what each of them writes first."""
    marks = {
        "iterate": "manifest.json",
        "games": "test.parquet",
        "convert": "convert_report.txt",
        "model": "config.json",
    }
    makers = {command for command, name in marks.items() if (folder / name).exists()}
    training = folder / "trainer_state" / "training.json"
    if training.exists():
        makers.add("train-online" if "online.steps" in read_json(training) else "train")
    for arguments in folder.glob("*.args.json"):
        if "player0" in read_json(arguments):
            makers.add("generate")
        else:
            makers.add("crossplay" if re.fullmatch(r"\d+-\d+\.args\.json", arguments.name) else "evaluate")
    return makers
