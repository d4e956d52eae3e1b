"""What the command tells verl's process to do. No torch."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict


class Export(BaseModel):
    """A checkpoint to write; `export.py: export` says what each is."""

    model_config = ConfigDict(extra="forbid")

    saved: str
    model: str
    checkpoint: str
    dtype: str
    base: str | None = None


class Launch(BaseModel):
    """One task: to get ready, or to train and to write the checkpoint."""

    model_config = ConfigDict(extra="forbid")

    log: Path
    """Gets what all processes of verl print."""
    overrides: list[str] = []
    """Hydra overrides; none where all steps are done, and only the checkpoint is to be written."""
    config: Path | None = None
    """A configuration over verl's own, for a process that does this task alone; None where verl stays for further
    tasks."""
    joins_cluster: bool = False
    """Whether verl joins a Ray cluster that runs; else it starts Ray itself."""
    export: Export | None = None
    """None where verl is only to get ready."""


REASON = "reason.txt"
"""The file for why a task failed, in the folder of a process."""


def ended_file(folder: Path, number: int) -> Path:
    """The file that is there once the task of this number is done, counted from 0."""
    return folder / f"ended_{number}"
