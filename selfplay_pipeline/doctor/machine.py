"""The machine to examine: this one, or a described one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from selfplay_pipeline.generate.preflight import gpu_memory, visible_gpus
from selfplay_pipeline.train.memory import Room, gigabytes


@dataclass(frozen=True)
class Machine:
    """Equal nodes; sizes in bytes, None if unknown."""

    gpus: int
    """GPUs of each node."""
    gpu: int | None
    """Memory of each GPU."""
    host: int | None
    """Memory of each node."""
    disk: int | None
    """Free disk space of the folder for results."""
    nodes: int = 1
    here: bool = True
    """Whether this is the current machine, so that further checks are possible."""

    @property
    def room(self) -> Room:
        return Room(self.gpu, self.host)

    def in_words(self) -> str:
        parts = [f"{self.nodes} nodes of"] if self.nodes > 1 else []
        size = f" of {gigabytes(self.gpu)}" if self.gpu else ""
        parts += [f"{self.gpus} GPU{'s' * (self.gpus != 1)}{size}" if self.gpus else "no GPU"]
        further = [f"{gigabytes(self.host)} host memory"] if self.host else []
        further += [f"{gigabytes(self.disk)} of disk free"] if self.disk is not None else []
        return ", ".join([" ".join(parts), *further])


def this_machine(output: Path) -> Machine:
    """Returns the current machine.

    Args:
        output: Folder for results.
    """
    gpus = visible_gpus()
    folder = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    return Machine(
        gpus=gpus,
        gpu=gpu_memory() if gpus else None,
        host=psutil.virtual_memory().total + psutil.swap_memory().total,
        disk=shutil.disk_usage(folder).free,
    )
