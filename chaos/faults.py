"""Faults of processes and disks, each with a command that meets it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSTOP, SIGTERM, Signals

from chaos.judging import Case
from chaos.outside import Ended
from chaos.scenes import CONVERT, EVALUATE, PATIENCE, REPORT, SCRIPTED, Cause, Command, Scene, dice, disturbed

KILLED = {-SIGKILL}
REFUSED = {1, 2}


def cases(seed: int) -> list[Case]:
    """Returns all faults of a seed, in the order of the table."""
    return [*_kills(seed), *_signals(), *_streams(), *_disks(), *_taken_away(), *_together()]


def _stopped_by(number: Signals) -> set[int]:
    """Returns the valid exit codes of a command that a signal asked to stop: as after Ctrl-C, or a shell's."""
    return {130, 128 + number}


# Kills and signals.


def _killed_at_random(seed: int, name: str, scene: Scene) -> Ended:
    """Kill the command at a random moment, three times, each time within the remaining work."""
    moments, ended = dice(seed, name), None
    for _ in range(3):
        running = scene.start()
        running.when(scene.grown(moments.random()))
        running.send(SIGKILL)
        ended = running.ended(30)
    assert ended is not None
    return ended


def _kills(seed: int) -> list[Case]:
    def at(share: float, scene: Scene) -> Ended:
        running = scene.started(share)
        running.send(SIGKILL)
        return running.ended()

    def while_converting(name: str, scene: Scene) -> Ended:
        running = scene.start()
        running.when(lambda: any(scene.written.glob(".*tmp")))
        time.sleep(dice(seed, name).random() * 0.3)
        running.send(SIGKILL)
        return running.ended(30)

    shares = {"kill-at-first-game": 0.0, "kill-halfway": 0.5, "kill-near-the-end": 0.95}
    found = [disturbed("kills", name, SCRIPTED, partial(at, share), KILLED) for name, share in shares.items()]
    for name in ("kill-at-random-1", "kill-at-random-2", "kill-at-random-3"):
        found.append(disturbed("kills", name, SCRIPTED, partial(_killed_at_random, seed, name), {0, *KILLED}))
    for name in ("convert-killed-1", "convert-killed-2"):
        found.append(disturbed("kills", name, CONVERT, partial(while_converting, name), {0, *KILLED}))
    return found


def _signals() -> list[Case]:
    def sent(numbers: tuple[Signals, ...], scene: Scene, *, group: bool = False) -> Ended:
        running = scene.started(0.4)
        for number in numbers:
            running.send(number, group=group)
            time.sleep(0.05)
        return running.ended(30)

    def ignored(number: Signals, scene: Scene) -> Ended:
        """Send a signal that the command found ignored at its start."""
        running = scene.started(0.4, before=lambda: signal.signal(number, signal.SIG_IGN))
        running.send(number)
        return running.ended(30)

    def stopped(then: Signals, scene: Scene) -> Ended:
        running = scene.started(0.4)
        running.send(SIGSTOP)
        time.sleep(1)
        running.send(then)
        return running.ended(PATIENCE)

    found = []
    for number in (SIGINT, SIGTERM, SIGHUP):
        name, codes = number.name.lower(), _stopped_by(number)
        found.append(disturbed("signals", f"{name}-once", SCRIPTED, partial(sent, (number,)), codes))
        # The second signal may come before Python's handlers are restored, and is then not caught.
        twice = partial(sent, (number, number))
        found.append(disturbed("signals", f"{name}-twice", SCRIPTED, twice, codes | {-number}))
    others: dict[str, tuple[Cause, set[int]]] = {
        "sigint-to-the-group": (partial(sent, (SIGINT,), group=True), {130}),
        "sigint-in-the-background": (partial(ignored, SIGINT), {130}),
        "sighup-under-nohup": (partial(ignored, SIGHUP), {0}),
        "sigquit": (partial(sent, (SIGQUIT,)), {-SIGQUIT, 131, 130}),
        "stopped-and-continued": (partial(stopped, SIGCONT), {0}),
        "stopped-and-killed": (partial(stopped, SIGKILL), KILLED),
        "stopped-asked-to-end-continued": (partial(sent, (SIGSTOP, SIGTERM, SIGCONT)), _stopped_by(SIGTERM)),
    }
    found += [disturbed("signals", name, SCRIPTED, *how, silent=name == "sigquit") for name, how in others.items()]
    return found


def _streams() -> list[Case]:
    def without(descriptors: tuple[int, ...], scene: Scene) -> Ended:
        def close() -> None:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    os.close(descriptor)

        return scene.run(before=close)

    def full(stream: str, scene: Scene) -> Ended:
        with open("/dev/full", "wb") as device:  # noqa: PTH123
            return scene.run(**{stream: device})

    def reader_gone(stream: str, scene: Scene) -> Ended:
        reading, writing = os.pipe()
        running = scene.start(**{stream: writing})
        os.close(writing)
        running.when(scene.grown(0.3))
        os.close(reading)
        return running.ended(60)

    def few_handles(count: int, scene: Scene) -> Ended:
        limits = (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        return scene.run(before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))

    streams: dict[str, Cause] = {
        "all-streams-closed": partial(without, (0, 1, 2)),
        "stderr-closed": partial(without, (2,)),
        "stdout-full": partial(full, "stdout"),
        "stderr-full": partial(full, "stderr"),
        "stdout-reader-gone": partial(reader_gone, "stdout"),
        "stderr-reader-gone": partial(reader_gone, "stderr"),
        "8-handles": partial(few_handles, 8),
        "24-handles": partial(few_handles, 24),
    }
    # Both continuing and stopping without an output stream are fine; losing an episode is not.
    any_end = {0, 1, 2, 120, -signal.SIGPIPE, 141}
    return [disturbed("streams", name, SCRIPTED, cause, any_end, silent=True) for name, cause in streams.items()]


# Disks.


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


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


def _unmount(place: str) -> None:
    subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _limit_files(kib: int) -> None:
    """Limit the size of all files of this process."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (kib * 1024, kib * 1024))


def _on_a_small_disk(kib: int, scene: Scene) -> Ended:
    """Let the command write to a small disk, which grows before the command is given again.

    Where disks cannot be mounted, the size of each file is limited instead.
    """
    if not may_mount():
        return scene.run(before=partial(_limit_files, kib))
    scene.written.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", f"size={kib}k", "chaos", str(scene.written))
    scene.to_the_end.callback(_unmount, str(scene.written))
    scene.until_again.callback(_mount, "-o", "remount,size=512m", str(scene.written))
    return scene.run()


def _read_only(scene: Scene) -> Ended:
    scene.written.mkdir(parents=True)
    place = str(scene.written)
    if may_mount():
        _mount("--bind", place, place)
        _mount("-o", "remount,bind,ro", place)
        scene.until_again.callback(_unmount, place)
        return scene.run()
    return scene.run(before=partial(_limit_files, 0))  # no mode of a folder restricts root


def _disks() -> list[Case]:
    def to_full_device(scene: Scene) -> Ended:
        scene.output.parent.mkdir()
        scene.output.symlink_to("/dev/full")
        scene.until_again.callback(scene.output.unlink)
        return scene.run()

    sizes: dict[str, tuple[Command, int]] = {
        "generate": (SCRIPTED, 2000), "generate-from-the-start": (SCRIPTED, 4), "convert": (CONVERT, 100),
        "evaluate": (EVALUATE, 100), "report": (REPORT, 200),
    }  # fmt: skip
    found = [
        disturbed("disk full", f"disk-full-{name}", command, partial(_on_a_small_disk, kib), REFUSED)
        for name, (command, kib) in sizes.items()
    ]
    found.append(disturbed("disk full", "games-go-to-dev-full", SCRIPTED, to_full_device, REFUSED))
    commands = {"generate": SCRIPTED, "convert": CONVERT, "evaluate": EVALUATE, "report": REPORT}
    for name, command in commands.items():
        found.append(disturbed("read-only", f"read-only-{name}", command, _read_only, REFUSED))
    return found


def _taken_away() -> list[Case]:
    def while_it_plays(take: Callable[[Scene], object], scene: Scene) -> Ended:
        running = scene.started(0.3)
        take(scene)
        ended = running.ended(PATIENCE)
        if ended.code == 0:  # then all games must exist
            scene.expect(scene.grown(0.99)(), "it ended with 0, but its games are not all there")
        return ended

    def replace(scene: Scene) -> Path:
        """Replace the file by a copy, as some editors do."""
        copy = scene.output.with_name("copy")
        copy.write_bytes(scene.output.read_bytes().rpartition(b"\n")[0] + b"\n")
        return copy.replace(scene.output)

    takes: dict[str, Callable[[Scene], object]] = {
        "output-folder-removed": lambda scene: shutil.rmtree(scene.written),
        "games-file-removed": lambda scene: scene.output.unlink(),
        "games-file-emptied": lambda scene: os.truncate(scene.output, 0),
        "games-file-replaced": replace,
    }
    return [
        disturbed("taken away", name, SCRIPTED, partial(while_it_plays, take), {0, *REFUSED})
        for name, take in takes.items()
    ]


def _together() -> list[Case]:
    def at_once(count: int, scene: Scene) -> Ended:
        """Start several commands at once; all but one may be refused, and the others must do the whole work."""
        ended = [one.ended(PATIENCE) for one in [scene.start() for _ in range(count)]]
        for one in ended:
            refused = one.code == 2 and len(one.message.splitlines()) == 1
            scene.expect(one.code == 0 or refused, f"one of them ended with {one.code}: {one.last_line}")
        scene.lost += scene.differences()
        return min(ended, key=lambda one: one.code != 0)

    def after_a_kill(scene: Scene) -> Ended:
        """Start the next command just before the previous one is killed."""
        running = scene.started(0.3)
        following = scene.start()
        time.sleep(0.5)
        running.send(SIGKILL)
        after = following.ended(PATIENCE)
        scene.expect(after.code in (0, 2), f"the one that followed ended with {after.code}: {after.last_line}")
        return running.ended()

    commands = {
        "generates": (SCRIPTED, 4),
        "converts": (CONVERT, 4),
        "reports": (REPORT, 2),
        "evaluations": (EVALUATE, 2),
    }
    found = [
        disturbed("together", f"{count}-{name}-at-once", command, partial(at_once, count), {0})
        for name, (command, count) in commands.items()
    ]
    return [*found, disturbed("together", "generate-just-after-a-kill", SCRIPTED, after_a_kill, KILLED)]
