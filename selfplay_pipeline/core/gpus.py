"""The GPUs of this machine, without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal

Device = Literal["cpu", "cuda"]

ANSWER_SECONDS = 30
"""Seconds after which `nvidia-smi` counts as hung."""


def gpu_visible() -> bool:
    """Whether an NVIDIA GPU is visible, without importing torch. An empty CUDA_VISIBLE_DEVICES hides all."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return Path("/dev/nvidiactl").exists() and shutil.which("nvidia-smi") is not None


def resolve_device(device: Literal["auto", "cpu", "cuda"]) -> Device:
    """Returns the device; for `auto`, cuda if a GPU is visible, else cpu."""
    return ("cuda" if gpu_visible() else "cpu") if device == "auto" else device


def visible_gpus() -> int:
    """Returns the number of GPUs that are visible to CUDA, without importing torch."""
    gpus = sum(line.startswith("GPU ") for line in _nvidia_smi("--list-gpus"))
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    return min(gpus, sum(name.strip() not in ("", "-1") for name in chosen.split(",")))


def gpu_memory() -> int | None:
    """Returns the memory in bytes of the smallest GPU that `nvidia-smi` lists; None without a GPU."""
    sizes = [line.strip() for line in _nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits")]
    return min((int(size) * 2**20 for size in sizes if size.isdigit()), default=None)


def gpu_name() -> str:
    """Returns the name of the first GPU that `nvidia-smi` lists, such as NVIDIA H100 80GB HBM3; empty without a GPU."""
    return next((line.strip() for line in _nvidia_smi("--query-gpu=name", "--format=csv,noheader")), "")


def gpu_driver() -> str | None:
    """Returns the version of the GPU driver, such as 580.65.06; None without a driver."""
    lines = _nvidia_smi("--query-gpu=driver_version", "--format=csv,noheader")
    return next((line.strip() for line in lines if line[:1].isdigit()), None)


def _nvidia_smi(*arguments: str) -> list[str]:
    """Returns the lines that `nvidia-smi` prints; empty if it is not installed or does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=ANSWER_SECONDS)
        return done.stdout.splitlines()
    except (OSError, subprocess.TimeoutExpired):
        return []
