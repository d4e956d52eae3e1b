"""A command, its undisturbed result, and the conversion of a fault to a case."""

from __future__ import annotations

import atexit
import contextlib
import json
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

from chaos.cases import Case, Verdict
from chaos.fake_server import FakeServer, honest
from chaos.judging import Seen, judge
from chaos.outside import Ended, Room, Running, room
from chaos.traces import Print, differences, fingerprint

PATIENCE = 90.0
"""Seconds after which a command without a real server or a training counts as hung."""
_making = threading.RLock()


@cache
def shared() -> Path:
    """Returns a folder for data that several cases need; it is removed at the end of this process."""
    folder, owner = Path(tempfile.mkdtemp(prefix="chaos-shared-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


@dataclass(frozen=True)
class Undisturbed:
    """Result of a command that was not disturbed."""

    print: Print
    size: int
    """Bytes of its output file."""


@dataclass(frozen=True, eq=False)
class Command:
    """A command that faults disturb.

    Attributes:
        arguments: Function that returns all arguments but `--output` and the server's address, called when first
            needed.
        output: Its output, a file or a folder below the case's folder.
        served: Whether it plays with a policy, on a server that each case has for itself.
        contents: Whether undisturbed runs always play the same games, not only the same ids.
        patience: Seconds after which it counts as hung.
    """

    arguments: Callable[[], Sequence[str]]
    output: str = "out/games.jsonl"
    served: bool = False
    contents: bool = True
    patience: float = PATIENCE

    @cached_property
    def undisturbed(self) -> Undisturbed:
        """The undisturbed result, from one run."""
        made = self.made
        return Undisturbed(
            fingerprint(made.parent if made.suffix else made, contents=self.contents), made.stat().st_size
        )

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
        self.server = FakeServer()
        if command.served:
            self.server.start()
            stack.callback(self.server.stop)
        stack.callback(self.until_again.close)

    @property
    def line(self) -> tuple[str, ...]:
        """The command line."""
        served = ("--server-url", self.server.url) if self.command.served else ()
        return (*self.command.arguments(), *served, "--output", str(self.output))

    def start(self, *further: str, **how: Any) -> Running:
        return self.room.start(*self.line, *further, **how)

    def run(self, *further: str, **how: Any) -> Ended:
        return self.start(*further, **how).ended(self.command.patience)

    def grown(self, share: float) -> Callable[[], bool]:
        """Returns a function that tells whether the output file has a share of its undisturbed size."""
        size = self.command.undisturbed.size * share

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

    def refused(self, *arguments: str) -> None:
        """Expect a one-line refusal of another command, because the folder is in use."""
        ended = self.room.run(*arguments, limit=self.command.patience)
        right = ended.code == 2 and len(ended.message.splitlines()) == 1
        self.expect(right, f"`{' '.join(arguments[:2])} …` beside it ended with {ended.code}: {ended.message[:200]}")

    def heal(self) -> None:
        """Remove the fault."""
        self.until_again.close()
        if self.command.served:
            self.server.stop()
            self.server.fault = self.server.info = honest
            self.server.start()


Cause = Callable[[Scene], Ended]
"""Function that runs the command with its fault."""


def disturbed(
    kind: str,
    name: str,
    command: Command,
    cause: Cause,
    codes: Collection[int],
    *,
    check: Callable[[Scene], Sequence[str]] | None = None,
    names_server: bool = False,
    **how: Any,
) -> Case:
    """Returns the case of one fault.

    Args:
        kind: Its row in the table.
        name: Its unique name.
        command: The command to disturb.
        cause: Function that runs the command with its fault.
        codes: Allowed exit codes of the disturbed command.
        check: Function that returns the problems in the end; by default the differences to an undisturbed run.
        names_server: Whether the message must name the server's address.
        how: Further attributes of `Seen`.
    """

    def run(folder: Path) -> Verdict:
        if check is None:
            command.undisturbed  # noqa: B018  made before, so that it is not part of the fault
        with contextlib.ExitStack() as stack:
            place = stack.enter_context(room(folder))
            scene = Scene(command, place, folder, stack)
            first = cause(scene)
            left = place.left(files=first.code is not None and first.code >= 0)
            scene.heal()
            again = scene.run()
            left += place.left()
            lost = [*scene.lost, *(check or _differs)(scene)]
            names = (scene.server.url,) if names_server and first.code else ()
            return judge(Seen(first, again, codes, lost, left, names, **how))

    return Case(kind, name, run)


def _differs(scene: Scene) -> list[str]:
    found = fingerprint(scene.written, contents=scene.command.contents)
    return differences(scene.command.undisturbed.print, found)


def configured(**sections: dict[str, Any]) -> Path:
    """Write a configuration file on top of the tiny one; returns its path."""
    text = json.dumps({"base": "tiny", **sections}, indent=1)
    path = shared() / f"config-{abs(hash(text))}.yaml"
    path.write_text(text)
    return path


def dice(seed: int, name: str) -> random.Random:
    """Returns a random generator that depends only on the case's name and the seed."""
    return random.Random(f"{seed} {name}")


SCRIPTED = Command(
    lambda: ("generate", "--config", "tiny", "--player", "own-view", "--player", "sharing", "--num-episodes", "3000")
)
"""Some seconds of play that need no server."""
SHORT = {"num_episodes": 48, "episodes_per_state": 4, "max_concurrency": 8, "max_failures": 4}


def _served(**generate: int) -> Command:
    def arguments() -> tuple[str, ...]:
        file = configured(game={"max_length": 4}, generate=SHORT | generate, engine={"request_timeout": 2})
        return ("generate", "--config", str(file))

    return Command(arguments, served=True)


SERVED = _served()
"""192 requests of a policy to a server, eight at a time; the command gives up after five lost episodes."""
PATIENT = _served(max_failures=1000)
"""The same play, but the command continues after any number of lost episodes."""
LONG = _served(num_episodes=2000)
"""Enough games for a long conversion."""


CONVERT = Command(lambda: ("convert", str(LONG.made), "--config", "tiny", "--val-fraction", "0.2"), output="out")
EVALUATE = Command(
    lambda: ("evaluate", "sharing", "--config", "tiny", "--partner", "own-view", "--num-states", "200"), output="out"
)
CROSSPLAY = Command(
    lambda: ("crossplay", "sharing", "own-view", "--config", "tiny", "--num-states", "100"), output="out"
)
REPORT = Command(lambda: ("report", str(LONG.made)), output="out/report.html")
PLOTS = Command(lambda: ("report", str(LONG.made), "--format", "svg"), output="out")
STATES = Command(lambda: ("games", "--config", "tiny", "--num-train", "2000", "--num-test", "10"), output="out")
