"""Faults of disks: full disks, read-only folders, and files that disappear while they are written."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from chaos.cases import Case
from chaos.outside import Ended, Running
from chaos.scenes import CONVERT, CROSSPLAY, EVALUATE, PLOTS, REPORT, SCRIPTED, SERVED, STATES, Scene, disturbed

KIB = 1024
REFUSED = {1, 2}


def cases(seed: int) -> list[Case]:
    del seed  # nothing here is random
    return [*_full(), *_limited(), *_read_only(), *_blocked(), *_taken_away()]


@cache
def may_mount() -> bool:
    """Whether disks can be mounted here: only root can, and not in every container."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            _mount("-t", "tmpfs", "chaos", folder)
        except (OSError, subprocess.CalledProcessError):
            return False
        _unmount(folder)
        return True


def small_disk(scene: Scene, kib: int) -> Callable[[], None] | None:
    """Let the command write to a small disk of its own, which grows before the command is given again.

    Returns:
        Function to call at the start of the command's process, which limits its files if mounting is impossible; else
        None.
    """
    if not may_mount():
        return partial(limit_files, kib)
    scene.written.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={kib}k", "chaos", str(scene.written))
    scene.to_the_end.callback(_unmount, str(scene.written))
    scene.until_again.callback(_mount, "-o", "remount,size=512m", str(scene.written))
    return None


def limit_files(kib: int) -> None:
    """Limit the size of all files of this process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * KIB, kib * KIB))


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(place: str) -> None:
    subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _full() -> list[Case]:
    def on_a_small_disk(kib: int, scene: Scene) -> Ended:
        return scene.run(before=small_disk(scene, kib))

    stages = {
        "generate": (SCRIPTED, 2000),
        "generate-with-a-policy": (SERVED, 64),
        "generate-from-the-start": (SCRIPTED, 4),
        "convert": (CONVERT, 100),
        "evaluate": (EVALUATE, 100),
        "crossplay": (CROSSPLAY, 100),
        "report": (REPORT, 200),
        "plots": (PLOTS, 40),
        "games": (STATES, 40),
    }
    return [
        disturbed("disk full", f"disk-full-{name}", command, partial(on_a_small_disk, kib), REFUSED)
        for name, (command, kib) in stages.items()
    ]


def _limited() -> list[Case]:
    def limited(kib: int, scene: Scene) -> Ended:
        return scene.run(before=partial(limit_files, kib))

    def to_full_device(scene: Scene) -> Ended:
        scene.output.parent.mkdir()
        scene.output.symlink_to("/dev/full")
        scene.until_again.callback(scene.output.unlink)
        return scene.run()

    return [
        disturbed("disk full", "file-limit-generate", SCRIPTED, partial(limited, 1000), REFUSED),
        disturbed("disk full", "file-limit-convert", CONVERT, partial(limited, 50), REFUSED),
        disturbed("disk full", "games-go-to-dev-full", SCRIPTED, to_full_device, REFUSED),
    ]


def _read_only() -> list[Case]:
    def read_only(scene: Scene) -> Ended:
        scene.written.mkdir(parents=True)
        place = str(scene.written)
        if may_mount():
            _mount("--bind", place, place)
            _mount("-o", "remount,bind,ro", place)
            scene.until_again.callback(_unmount, place)
        elif os.geteuid() != 0:
            scene.written.chmod(0o555)
            scene.until_again.callback(scene.written.chmod, 0o755)
        else:  # no mode of a folder restricts root
            return scene.run(before=partial(limit_files, 0))
        return scene.run()

    stages = {"generate": SCRIPTED, "convert": CONVERT, "evaluate": EVALUATE, "report": REPORT, "games": STATES}
    return [
        disturbed("read-only", f"read-only-{name}", command, read_only, REFUSED) for name, command in stages.items()
    ]


def _blocked() -> list[Case]:
    def by_a_file(scene: Scene) -> Ended:
        scene.written.write_text("in the way")
        scene.until_again.callback(scene.written.unlink)
        return scene.run()

    def by_a_folder(scene: Scene) -> Ended:
        scene.output.mkdir(parents=True)
        scene.until_again.callback(scene.output.rmdir)
        return scene.run()

    stages = {"generate": SCRIPTED, "convert": CONVERT, "evaluate": EVALUATE, "games": STATES}
    files = [disturbed("read-only", f"file-for-folder-{name}", command, by_a_file, REFUSED)
             for name, command in stages.items()]  # fmt: skip
    folders = [disturbed("read-only", f"folder-for-file-{name}", command, by_a_folder, REFUSED)
               for name, command in {"generate": SCRIPTED, "report": REPORT}.items()]  # fmt: skip
    return [*files, *folders]


def _taken_away() -> list[Case]:
    def while_it_plays(take: Callable[[Scene], object], scene: Scene) -> Ended:
        running: Running = scene.started(0.3)
        take(scene)
        ended = running.ended(scene.command.patience)
        if ended.code == 0:  # then all games must exist
            scene.expect(scene.grown(0.99)(), "it ended with 0, but its games are not all there")
        return ended

    def rename(scene: Scene) -> Path:
        return scene.written.rename(scene.written.with_name("elsewhere"))

    takes: dict[str, Callable[[Scene], object]] = {
        "output-folder-removed": lambda scene: shutil.rmtree(scene.written),
        "output-folder-renamed": rename,
        "games-file-removed": lambda scene: scene.output.unlink(),
        "games-file-emptied": lambda scene: os.truncate(scene.output, 0),
        "games-file-replaced": lambda scene: _replace(scene.output),
    }
    return [
        disturbed("taken away", name, SCRIPTED, partial(while_it_plays, take), {0, *REFUSED})
        for name, take in takes.items()
    ]


def _replace(path: Path) -> None:
    """Replace the file by a copy, as some editors do."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes().rpartition(b"\n")[0] + b"\n")
    copy.replace(path)
