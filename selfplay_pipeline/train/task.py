"""Tasks that the command sends to verl's process, as messages. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Export(BaseModel):
    """A checkpoint to write; `export.py: export` describes the fields."""

    model_config = ConfigDict(extra="forbid")

    saved: str
    model: str
    checkpoint: str
    dtype: str
    base: str | None = None


class Task(BaseModel):
    """One task for verl's process: load the model for a later training, or train and write the checkpoint."""

    model_config = ConfigDict(extra="forbid")

    log: Path
    """File for the output of all of verl's processes."""
    overrides: list[str] = []
    """Hydra overrides; empty if all steps are done and only the checkpoint is missing."""
    config: Path | None = None
    """File with settings on top of verl's own configuration, if the process ends after this task; None if it may get
    further tasks.
    """
    joins_cluster: bool = False
    """Whether verl joins a running Ray cluster; else it starts Ray itself."""
    export: Export | None = None
    """Checkpoint to write; None if the task is only to load the model."""


REASON = "reason.txt"
"""Name of the file with the reason why a task failed, in the folder of a process."""


def ended_file(folder: Path, number: int) -> Path:
    """Returns the file that exists once task `number`, counted from 0, is done."""
    return folder / f"ended_{number}"
