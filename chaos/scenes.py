"""A command, its undisturbed result, and the conversion of a fault to a case."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from factories import make_episodes, write_episodes

from chaos.judging import Case, Verdict, judge
from chaos.outside import Ended, Room, Running, room
from chaos.traces import Contents, contents_of, differences

PATIENCE = 90.0
"""Seconds after which a command counts as hung."""
_making = threading.RLock()


@cache
def shared() -> Path:
    """Returns a folder for data that several cases need; it is removed at the end of this process."""
    folder, owner = Path(tempfile.mkdtemp(prefix="chaos-shared-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


@dataclass(frozen=True, eq=False)
class Command:
    """A command that faults disturb.

    Attributes:
        arguments: Function that returns all arguments but `--output`, called when first needed.
        output: Its output, a file or a folder below the case's folder.
    """

    arguments: Callable[[], Sequence[str]]
    output: str = "out/games.jsonl"

    @cached_property
    def made(self) -> Path:
        """The output of an undisturbed run."""
        with _making, contextlib.ExitStack() as stack:
            if (made := self.__dict__.get("made")) is not None:  # another thread was first
                return Path(made)
            folder = Path(tempfile.mkdtemp(dir=shared()))
            scene = Scene(self, stack.enter_context(room(folder)), folder, stack)
            ended = scene.run()
            if ended.code != 0:
                raise RuntimeError(f"{scene.line} fails undisturbed: {ended.err[-500:]}")
            return scene.output

    @cached_property
    def contents(self) -> Contents:
        """The contents of the files of an undisturbed run."""
        return contents_of(self.made.parent if self.made.suffix else self.made)


class Scene:
    """A command in a room of its own, about to be disturbed."""

    def __init__(self, command: Command, place: Room, folder: Path, stack: contextlib.ExitStack) -> None:
        self.command, self.room = command, place
        self.output = folder / command.output
        self.written = self.output.parent if self.output.suffix else self.output
        """The folder with all output files."""
        self.lost: list[str] = []
        """Problems in addition to those that the folder shows."""
        self.to_the_end = stack
        self.until_again = contextlib.ExitStack()
        """Callbacks that remove the fault before the same command is given again."""
        stack.callback(self.until_again.close)

    @property
    def line(self) -> tuple[str, ...]:
        """The command line."""
        return (*self.command.arguments(), "--output", str(self.output))

    def start(self, *further: str, **how: Any) -> Running:
        return self.room.start(*self.line, *further, **how)

    def run(self, *further: str, **how: Any) -> Ended:
        return self.start(*further, **how).ended(PATIENCE)

    def grown(self, share: float) -> Callable[[], bool]:
        """Returns a function that tells whether the output file has a share of its undisturbed size."""
        size = self.command.made.stat().st_size * share

        def reached() -> bool:
            try:
                return self.output.stat().st_size > size
            except OSError:
                return False

        return reached

    def started(self, share: float = 0.3, **how: Any) -> Running:
        """Start the command and wait until it has written a share of its output."""
        running = self.start(**how)
        self.expect(running.when(self.grown(share)), f"it ended before {share:.0%} was written: {running.said[-200:]}")
        return running

    def expect(self, holds: bool, problem: str) -> None:
        """Record a problem unless the condition holds."""
        if not holds:
            self.lost.append(problem)

    def differences(self) -> list[str]:
        """Returns the differences to an undisturbed run."""
        return differences(self.command.contents, contents_of(self.written))


Cause = Callable[[Scene], Ended]
"""Function that runs the command with its fault."""


def disturbed(
    kind: str, name: str, command: Command, cause: Cause, codes: Collection[int], *, silent: bool = False
) -> Case:
    """Returns the case of one fault.

    Args:
        kind: Its row in the table.
        name: Its unique name.
        command: The command to disturb.
        cause: Function that runs the command with its fault.
        codes: Allowed exit codes of the disturbed command.
        silent: Whether the message of the disturbed command cannot be read.
    """

    def run(folder: Path) -> Verdict:
        command.contents  # noqa: B018  made before, so that it is not part of the fault
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(room(folder))
            scene = Scene(command, place, folder, stack)
            first = cause(scene)
            left = place.left(files=first.code is not None and first.code >= 0)
            scene.until_again.close()
            again = scene.run()
            left += place.left()
            return judge(first, again, codes, [*scene.lost, *scene.differences()], left, silent=silent)

    return Case(kind, name, run)


def dice(seed: int, name: str) -> random.Random:
    """Returns a random generator that depends only on the case's name and the seed."""
    return random.Random(f"{seed} {name}")


@cache
def many_episodes() -> Path:
    """Returns a file of episodes that takes some seconds to convert."""
    path = shared() / "games.jsonl"
    write_episodes(path, make_episodes(500, 4))
    return path


SCRIPTED = Command(
    lambda: ("generate", "--config", "tiny", "--player", "own-view", "--player", "sharing", "--num-episodes", "3000")
)
"""Some seconds of play that need no server."""
CONVERT = Command(lambda: ("convert", str(many_episodes()), "--config", "tiny", "--val-fraction", "0.2"), output="out")
EVALUATE = Command(
    lambda: ("evaluate", "sharing", "--config", "tiny", "--partner", "own-view", "--num-states", "200"), output="out"
)
REPORT = Command(lambda: ("report", str(many_episodes())), output="out/report.html")
