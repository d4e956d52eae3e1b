"""Ownership of folders and files, so that no command writes into another command's."""

from __future__ import annotations

import re
from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import check_is_folder
from selfplay_pipeline.core.links import check_links
from selfplay_pipeline.core.small_files import check_is_no_pattern, check_regular, read_json

HOLDS = {
    "generate": "episodes of `selfplay generate`",
    "convert": "rows of `selfplay convert`",
    "train": "a training of `selfplay train`",
    "imitate": "a training of `selfplay imitate`",
    "iterate": "a run of `selfplay iterate`",
    "iterate --members": "a population of `selfplay iterate --members`",
    "game states": "game states of `selfplay game states`",
    "train-online": "a training of `selfplay train-online`",
    "evaluate": "an evaluation of `selfplay evaluate`",
    "crossplay": "episodes of `selfplay crossplay`",
    "listen": "a listening test of `selfplay listen`",
    "benchmark": "a line of `selfplay benchmark`",
    "model": "a model",
}
"""Descriptions of a folder's content, by the command that wrote it."""
OWNERS = {
    "train",
    "imitate",
    "iterate",
    "iterate --members",
    "train-online",
    "evaluate",
    "crossplay",
    "listen",
    "benchmark",
}
"""Commands that own everything in their folder; other commands write a few files next to the user's own."""
IMITATED = "imitate.json"
"""File with the choices that made the rows of `imitate`."""
TRAINING_RECORD = Path("trainer_state/training.json")
"""Record of a training, in its folder."""
TRAININGS = {"train", "imitate", "train-online"}
"""Commands that write a checkpoint, and the record of their training before it."""
STAGES = {"generate", "convert", "train"}
"""Commands that may share a folder: the stages of one iteration."""

FILES_BEGIN = {
    "report": b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="content-security-policy" content="default-src 'none'; img-src data:; style-src 'sha256-""",
    "game humans": b'{"schema_version":2,"episode_id":"person-',
    "slime data": b'{"prompt": [{"role": ',
    "game silence": b'{\n  "entries": [',
}
"""First bytes of the output file of each command that replaces a single file, in lower case."""


def check_folder(folder: Path, command: str) -> None:
    """Checks that a folder belongs to no command, to this one, or to stages that may share it; for a model, to none.

    Raises:
        UserError: Another command has written into the folder, a link in the folder leads out of it, or the folder of
            a training holds another checkpoint.
    """
    check_is_folder(folder)
    if command in OWNERS:
        check_links(folder)
    if command in TRAININGS | {"iterate", "iterate --members"}:
        check_is_no_pattern(folder)  # a server loads the checkpoints in it
    makers = made_by(folder)
    own = STAGES if command in STAGES else {command} - {"model"}  # no model is written over
    if makers and not makers & own:
        listed = " and ".join(HOLDS[maker] for maker in sorted(makers))
        raise UserError(f"{folder} holds {listed}; `selfplay {command}` needs its own: give another --output")
    checkpoint = folder / "checkpoint"
    if command in TRAININGS and checkpoint.exists() and not (folder / TRAINING_RECORD).exists():
        raise UserError(f"{checkpoint} exists but was not made by a training here; give another --output")


def check_file(file: Path, command: str) -> None:
    """Checks that a file can be made at a path, or that the file there is empty or made by this command.

    Raises:
        UserError: The file holds something else, such as the command's own input, or no file can have this path.
    """
    begins = FILES_BEGIN[command]
    if not file.exists():
        check_is_folder(file.parent)
        return
    check_regular(file, "give another --output")
    with file.open("rb") as opened:
        start = opened.read(len(begins))
    if start and start.lower() != begins:
        raise UserError(f"{file} holds something that `selfplay {command}` did not write; give another --output")


def made_by(folder: Path) -> set[str]:
    """Returns the commands that have written into a folder, recognised by the first file that each of them writes.

    The content of these files is checked too, because other programs may write files with the same names.
    """
    makers = {"convert"} if (folder / "convert_report.txt").exists() else set()
    if (folder / "test.parquet").exists() and (folder / "train.parquet").exists():
        makers.add("game states")
    signs = (
        ("iterate", "manifest.json", "packages"),
        ("iterate --members", "member_1/manifest.json", "packages"),
        ("model", "config.json", "model_type"),
        ("benchmark", "benchmark.json", "suite"),
    )
    for command, name, key in signs:
        if key in _keys(folder / name):
            makers.add(command)
    training = _keys(folder / TRAINING_RECORD)
    if training:
        makers.add("train-online" if "online.steps" in training else "train")
    if "imitate.held_out" in _keys(folder / IMITATED):
        makers = {"imitate"}
    for arguments in folder.glob("*.args.json"):
        keys = _keys(arguments)
        if "player0" in keys:
            makers.add("generate")
        elif "policy.weights" in keys:
            between_two = re.fullmatch(r"\d+-\d+\.args\.json", arguments.name)
            listened = arguments.name == "heard.args.json"
            makers.add("crossplay" if between_two else "listen" if listened else "evaluate")
    return makers


def _keys(path: Path) -> set[str]:
    """Returns the keys of a JSON file; empty if the file is missing or holds no object."""
    try:
        data = read_json(path)
    except UserError:
        return set()
    return set(data) if isinstance(data, dict) else set()
