"""Reads the progress of a training: the saves in `trainer_state/`, and the metrics file with one line per step."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.files import write_text
from selfplay_pipeline.core.small_files import check_regular

LATEST = "latest_checkpointed_iteration.txt"
"""Name of verl's record of the last complete save."""
WHOLE = "whole.json"
"""Name of the file that a save writes last; if it exists, the save is complete."""
METRICS = "metrics"
"""Key of this file, in online trainings, with the metrics of the saved step."""
ADAPTER = "adapter"
"""Name of the folder of a LoRA adapter in peft's format: in a save, and next to a checkpoint."""
PICKLED_POSITION = "data.pt"
"""verl's file of the dataloader's position.

It is a pickle and is not needed, because the data of a step follow from its number.
"""

HELD_OUT_LOSSES = ("selfplay/held_out_loss/before", "selfplay/held_out_loss")
"""Names of the held-out losses of imitation: before the first step, and after the last step of each epoch."""


def seconds_of(line: Mapping[str, Any]) -> float:
    """Returns the seconds of a step without saving, by verl's timers; 0 for a line of another kind."""
    return float(line.get("timing_s/step", 0.0) - line.get("timing_s/save_checkpoint", 0.0))


def saves(state: Path) -> dict[int, Path]:
    """Returns the folders of all saves by their steps, incomplete ones included."""
    found = {path: re.fullmatch(r"global_step_([0-9]{1,9})", path.name) for path in state.glob("global_step_*")}
    return {int(match[1]): path for path, match in found.items() if match and path.is_dir()}


def is_whole(folder: Path) -> bool:
    """Whether a save is complete. verl deletes the content of old saves but keeps their folders."""
    return (folder / WHOLE).exists() and (folder / "actor").is_dir()


def saved_step(state: Path) -> int:
    """Returns the step of verl's last complete save, 0 if there is none."""
    try:
        step = int((state / LATEST).read_text("utf-8"))
    except (OSError, ValueError):
        return 0
    return step if step in saves(state) else 0


def has_state(state: Path) -> bool:
    """Whether the last save holds the trainer's state, and not only the weights for the checkpoint."""
    return any(state.glob(f"global_step_{saved_step(state)}/actor/optim_*"))


def saved_adapter(state: Path, step: int) -> Path:
    """Returns the folder of a step's LoRA adapter, in peft's format."""
    return state / f"global_step_{step}" / "actor" / ADAPTER


def go_back_to_last_logged_save(state: Path, metrics: Path) -> int:
    """Make verl continue at its last complete and logged save, or from the start; returns the step or 0.

    verl saves before it logs, so a kill between the two would lose the step's metrics. verl also cannot read a record
    of the last save that a kill left incomplete.
    """
    folders, logged = saves(state), {line["step"] for line in read_lines(metrics)}
    for folder in folders.values():
        (folder / PICKLED_POSITION).unlink(missing_ok=True)
    step = max((step for step, folder in folders.items() if step in logged and is_whole(folder)), default=0)
    if step:
        write_text(state / LATEST, str(step))
    else:
        (state / LATEST).unlink(missing_ok=True)
    for later, folder in folders.items():  # else they could be taken for saves of the steps that are done again
        if later > step:
            shutil.rmtree(folder)
    return step


def prune(state: Path, step: int) -> None:
    """Delete all saves but the last, and from the last one its extra copy of the checkpoint's weights."""
    for saved, folder in saves(state).items():
        if saved != step:
            shutil.rmtree(folder)
    for shard in (state / f"global_step_{step}" / "actor" / "huggingface").glob("*.safetensors"):
        shard.unlink()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the complete JSON lines, one per step; an incomplete last line is ignored.

    Raises:
        UserError: A line is damaged.
    """
    return NewLines(path).read()


class NewLines:
    """Reader of a growing file, which reads and parses each line once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes, self._lines = 0, 0

    def read(self) -> list[dict[str, Any]]:
        """Returns the lines that were added since the last call, as `read_lines` does."""
        if not self.path.exists():
            return []
        check_regular(self.path, "remove it, and the training begins it anew")
        with self.path.open("rb") as file:
            file.seek(self._bytes)
            texts = [text for text in file if text.endswith(b"\n")]
        lines = [self._parse(number, text) for number, text in enumerate(texts, start=self._lines + 1)]
        self._bytes, self._lines = self._bytes + sum(map(len, texts)), self._lines + len(texts)
        return lines

    def _parse(self, number: int, text: bytes) -> dict[str, Any]:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            raise UserError(
                f"{self.path}:{number}: damaged: not the figures of a step; delete this line and those below it, and "
                "the training goes on from there"
            )
        return line


def keep_lines(path: Path, last_step: int) -> None:
    """Drop the lines of steps that a resumed training repeats."""
    if path.exists():
        kept = [line for line in read_lines(path) if line["step"] <= last_step]
        write_text(path, "".join(json.dumps(line) + "\n" for line in kept))
