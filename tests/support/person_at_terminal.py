"""A scripted person at a real pseudo-terminal, who reads the screen through a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import TracebackType

import pyte

SIZE = (200, 160)
ENTER, NEW_LINE, TAB, CTRL_C, CTRL_D = "\r", "\x1b\r", "\t", "\x03", "\x04"
PATIENCE = 120.0


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
        """What the person sees now."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def _read(self, seconds: float) -> bool:
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        data = os.read(self.master, 1 << 16)
        self.raw += data
        self.stream.feed(data)
        return True

    def wait_for(self, words: str) -> str:
        """Returns everything that the terminal got since the last call; the words must be in it or on the screen."""
        end = time.monotonic() + PATIENCE
        while words not in self.text:
            assert time.monotonic() < end, f"{words!r} never came:\n{self.text}"
            if not self._read(0.1) and self.process.poll() is not None and not self._read(0.2):
                raise AssertionError(f"ended with {self.process.returncode} before {words!r}:\n{self.text}")
        return self.text

    def type(self, keys: str | bytes) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:  # and read meanwhile, so that neither side waits for the other
            self._read(0)
            if select.select([], [self.master], [], 0.1)[1]:
                data = data[os.write(self.master, data[:1024]) :]

    def paste(self, text: str) -> None:
        self.type(f"\x1b[200~{text}\x1b[201~")

    def say(self, text: str) -> None:
        """Type a turn, check it, and send it."""
        self.paste(text)
        self.type(ENTER)
        self.wait_for("Enter sends it.")
        self.type(ENTER)
        self.wait_until_gone("Enter sends it.")

    def wait_until_gone(self, words: str) -> None:
        end = time.monotonic() + PATIENCE
        while words in self.text:
            assert time.monotonic() < end, f"{words!r} stays:\n{self.text}"
            if not self._read(0.1) and self.process.poll() is not None:
                return

    def wait_until_turn_or_end(self) -> bool:
        """Returns whether the episode has ended; else it is the person's turn again."""
        turns = self.text.count("your turn: ")
        end = time.monotonic() + PATIENCE
        while "─ the episode ─" not in self.text:
            assert time.monotonic() < end, self.text
            if not self._read(0.2) and self.text.count("your turn: ") > turns:
                return False
        return True

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Returns the exit code after reading everything."""
        end = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it does not end:\n{self.text}"
            self._read(0.1)
        while self._read(0.1):
            pass
        assert termios.tcgetattr(self.slave) == self.before, "the terminal is left as it was"
        return self.process.returncode
