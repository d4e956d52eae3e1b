"""Fixtures that tests of several files share; a file that needs one in all its tests marks itself."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tenacity import wait_none

from selfplay_pipeline.engines import client, server_lock
from selfplay_pipeline.games import registry


@pytest.fixture
def no_game_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test begins as a process does, to which nobody has named a game, and leaves none to others."""
    monkeypatch.setattr(registry, "_found", {})


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Requests are tried again at once, and servers are locked against nobody outside of the test."""
    monkeypatch.setattr(client, "wait_exponential_jitter", lambda **given: wait_none())
    monkeypatch.setattr(server_lock, "PAUSE", 0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a disk of a size, such as `6m`, for the test; skips the test where this process may not."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mounted(size: str) -> Path:
        if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk]).returncode:
            pytest.skip("a small disk cannot be mounted here")
        return disk

    yield mounted
    if disk.is_mount():  # lazily: a trainer that stays still has its log open there
        subprocess.run(["umount", "--lazy", disk], check=True)
