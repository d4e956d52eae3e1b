"""Ownership of folders and files, so that no command writes into another command's."""

from __future__ import annotations

from pathlib import Path

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import check_is_folder, write_text
from selfplay_pipeline.core.links import check_links
from selfplay_pipeline.core.small_files import check_is_no_pattern, check_regular, read_json, read_small_text

OWNER = ".selfplay"
"""File in an output folder with the name of the command that wrote into it first."""
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
"""Commands that own everything in their folder."""
BESIDE_OTHERS = {"generate", "convert", "game states"}
"""Commands that write a few files into a folder, next to the user's own."""
CONVERTED = "convert.json"
"""File with the settings that decided the rows of `convert`."""
IMITATED = "imitate.json"
"""File with the choices that made the rows of `imitate`."""
TRAINING_RECORD = Path("trainer_state/training.json")
"""Record of a training, in its folder."""
TRAININGS = {"train", "imitate", "train-online"}
"""Commands that write a checkpoint, and the record of their training before it."""
STAGES = {"generate", "convert", "train"}
"""Commands that may share a folder: the stages of one iteration."""
REPLACES = {
    "convert": ("train.parquet", "val.parquet"),
    "game states": ("train.parquet", "test.parquet"),
    "imitate": ("train.parquet", "metrics.jsonl"),
    **dict.fromkeys(("train", "train-online", "iterate"), ("metrics.jsonl",)),
}
"""Files that a command replaces, under names that other programs use too."""
RECORDS: dict[str, str | Path] = {
    "convert": CONVERTED,
    "imitate": IMITATED,
    **dict.fromkeys(("train", "train-online"), TRAINING_RECORD),
    "iterate": "manifest.json",
}
"""Record of a command in its folder, by which it knows its own files if `OWNER` was not copied with them."""

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
    """Checks that a folder is free, this command's own, or shared by stages; a model's folder must be free.

    Raises:
        UserError: Another command has written into the folder, a link in the folder leads out of it, or the folder
            holds a checkpoint or a file of others that the command would replace.
    """
    check_is_folder(folder)
    if command in OWNERS:
        check_links(folder)
    if command in TRAININGS | {"iterate", "iterate --members"}:
        check_is_no_pattern(folder)  # a server loads the checkpoints in it
    owner = owner_of(folder)
    if owner and owner != command and not {owner, command} <= STAGES:
        raise UserError(
            f"{folder} holds what `selfplay {owner}` wrote; `selfplay {command}` needs its own: give another --output, "
            f"or remove {folder / OWNER} too if nothing of it is left"
        )
    if _is_model(folder):
        raise UserError(f"{folder} holds a model; `selfplay {command}` needs its own: give another --output")
    checkpoint = folder / "checkpoint"
    if command in TRAININGS and checkpoint.exists() and not (folder / TRAINING_RECORD).exists():
        raise UserError(f"{checkpoint} exists but was not made by a training here; give another --output")
    # Only `convert` writes its record before all else, also in a folder that `generate` owns.
    begun = command in RECORDS and (folder / RECORDS[command]).exists()
    if not begun and (not owner or (command == "convert" and owner != command)):
        for replaced in (folder / name for name in REPLACES.get(command, ())):
            if replaced.exists():
                raise UserError(f"{replaced} exists but `selfplay {command}` did not write it; give another --output")


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


def own_folder(folder: Path, command: str) -> None:
    """Write into a folder that it belongs to a command, unless it belongs to one already.

    `generate` makes one file, so a folder in which there are others stays the user's.
    """
    beside_others = command == "generate" and folder.exists() and any(folder.iterdir())
    if not owner_of(folder) and not beside_others:
        write_text(folder / OWNER, f"{command}\n")


def owner_of(folder: Path) -> str:
    """Returns the command that a folder belongs to; "" if it belongs to none.

    Raises:
        UserError: The file that names the command is damaged.
    """
    marker = folder / OWNER
    if not marker.exists():
        return ""
    owner = read_small_text(marker).strip()
    if owner not in OWNERS | BESIDE_OTHERS:
        raise UserError(f"{marker}: names no command that writes into a folder; remove it, or give another --output")
    return owner


def _is_model(folder: Path) -> bool:
    """Whether a folder is a model in the format of Hugging Face, which need not be one of ours."""
    try:
        config = read_json(folder / "config.json")
    except UserError:
        return False
    return isinstance(config, dict) and "model_type" in config
