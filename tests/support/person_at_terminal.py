"""A scripted person at a real pseudo-terminal, who reads the screen through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pyte

from selfplay_pipeline.people.prompt import KEYS

SIZE = (200, 160)
ENTER, NEW_LINE, TAB, CTRL_C, CTRL_D = "\r", "\x1b\r", "\t", "\x03", "\x04"
SENDS, ENDED = "Enter sends it.", "─ the episode ─"
PATIENCE = 300.0
"""Seconds; a test fails after them, which even a machine under load does not take."""


class PersonAtTerminal:
    """The command `selfplay` in a terminal of its own.

    Attributes:
        raw: All bytes that reached the terminal.
    """

    def __init__(self, *arguments: str, cwd: Path | None = None) -> None:
        self.raw = b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
        self.before = termios.tcgetattr(slave)
        self.screen = pyte.Screen(*SIZE)
        self.stream = pyte.ByteStream(self.screen)
        self.shown: str | None = None
        env = {**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "selfplay_pipeline", *arguments],
            stdin=slave, stdout=slave, stderr=slave, env=env, cwd=cwd, start_new_session=True,
        )  # fmt: skip
        self.slave = slave

    def __enter__(self) -> PersonAtTerminal:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    @property
    def text(self) -> str:
        """What the person sees now: the text of `pyte.Screen.display`, which looks at each empty cell as well."""
        if self.shown is None:
            lines = [self.screen.buffer[row] for row in range(SIZE[1])]
            cells = [[line[column].data for column in range(max(line, default=-1) + 1)] for line in lines]
            self.shown = "\n".join("".join(line).rstrip() for line in cells)
        return self.shown

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = os.read(self.master, 1 << 16)
        self.raw += data
        self.stream.feed(data)
        self.shown = None
        return True

    def wait_for(self, words: str) -> str:
        """Returns the screen once these words are on it."""
        return self._wait(lambda text: words in text, repr(words))

    def wait_for_turn(self) -> list[str] | None:
        """Returns the actions that are possible in the person's next turn; None if the episode has ended first."""
        text = self._wait(lambda text: KEYS in text or ENDED in text, "a turn or the end")
        return None if ENDED in text else text.rpartition("your turn: ")[2].partition("\n")[0].split(", ")

    def type(self, keys: str | bytes) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:  # and read meanwhile, so that neither side waits for the other
            self._read(0)
            if select.select([], [self.master], [], 0.1)[1]:
                data = data[os.write(self.master, data[:1024]) :]

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def send(self, text: str = "") -> None:
        """Paste a text, if any, check what has been typed, and send it."""
        if text:
            self.paste(text)
        self.type(ENTER)
        self.wait_for(SENDS)
        self.type(ENTER)
        self._wait(lambda text: SENDS not in text, f"no {SENDS!r}")

    def play_episode(self, words: str = "hello") -> None:
        """Speak once, then propose the first form, and accept whatever is proposed."""
        spoken = False
        while (actions := self.wait_for_turn()) is not None:
            if "accept" in actions:
                self.send("[accept]")
            elif "propose" not in actions or ("message" in actions and not spoken):
                spoken = True
                self.send(words)
            else:
                self.type(TAB * (actions.index("propose") + 1))
                self.send()

    def ended(self, *, restored: bool = True, again: str = "") -> int:
        """Returns the exit code after reading everything; the terminal must be as it was if it is `restored`.

        Keys that come before the prompt reads them are lost, so `again` is typed every few seconds.
        """
        end = time.monotonic() + PATIENCE
        typed = time.monotonic()
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            self._read(0.1)
            if again and time.monotonic() > typed + 5:
                self.type(again)
                typed = time.monotonic()
        while self._read(0.1):
            pass
        assert not restored or termios.tcgetattr(self.slave) == self.before
        return self.process.returncode

    def _wait(self, fits: Callable[[str], bool], what: str) -> str:
        end = time.monotonic() + PATIENCE
        while not fits(text := self.text):
            assert time.monotonic() < end, f"{what} never came:\n{text}"
            if not self._read(0.1) and self.process.poll() is not None and not self._read(0.2):
                raise AssertionError(f"ended with {self.process.returncode} before {what}:\n{text}")
        return text
