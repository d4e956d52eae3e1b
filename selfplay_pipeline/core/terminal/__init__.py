"""The only module that prints. Control codes in a text become visible signs; only rich's own styles take effect."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import IO, Any, TextIO, cast

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

from selfplay_pipeline.core.terminal.harmless import harmless, one_line

MOST_LINES = 40
"""Largest number of lines of a failure, such as the end of a log."""


class Terminal(Console):
    """rich's console for untrusted text: markup, emoji codes and control characters in a text have no effect.

    rich adds its styles after the text is cleaned, and marks its own control codes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    @property
    def file(self) -> IO[str]:
        """The real stream below a `Cleaned` wrapper; the wrapper would remove rich's own styles."""
        stream: Any = super().file
        return cast(IO[str], stream.beneath if isinstance(stream, Cleaned) else stream)

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render_str(self, text: str, **options: Any) -> Text:
        """Cleans the text before the layout, so that columns stay straight."""
        return super().render_str(harmless(text, lines=True), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        return super()._render_buffer(
            segment if segment.control else Segment(_writable(segment.text, encoding), segment.style)
            for segment in buffer
        )

    def on_broken_pipe(self) -> None:
        """Ends quietly, because the reader of the output has gone."""
        _give_up_streams()
        raise SystemExit(1)


class Cleaned:
    """A stream for code that does not print through `Terminal`: libraries, warnings, tracebacks, the option parser."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        """Write the text without codes that steer a terminal. Carriage returns stay, for libraries' progress bars."""
        self.beneath.write("\r".join(_writable(part, self.beneath.encoding) for part in text.split("\r")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


console = Terminal(stderr=True)
"""Console of bars and tables; lines can be printed above them."""


def guard() -> None:
    """Wrap stdout and stderr, so that control characters in the output of other libraries are removed.

    huggingface_hub logs errors only; it would otherwise warn of every attempt before the final failure.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Cleaned):
            setattr(sys, name, Cleaned(stream))


def flush() -> None:
    """Write the buffered rest to stdout.

    Raises:
        OSError: The rest cannot be written to stdout.
    """
    if sys.stdout is not None:  # None if the command was started with stdout closed
        sys.stdout.flush()


def give_up_stdout() -> None:
    """Redirect stdout to the null device, so that its unwritable rest is dropped."""
    _give_up(sys.stdout)


def finish() -> None:
    """Write the buffered rest; a closed pipe is ignored."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (BrokenPipeError, ValueError):
        _give_up_streams()


def result(text: str) -> None:
    """Print the result of a command on stdout; it may have several lines."""
    Terminal().print(text, soft_wrap=True)


def say(line: str) -> None:
    """Print one status line on stderr; above a bar or a table if one is drawn."""
    console.print(one_line(line), soft_wrap=True)


def say_failure(message: str) -> None:
    """Print the reason of a failure: one line, then further lines indented, such as the end of a log."""
    first, *rest = message.splitlines() or [""]
    say(f"selfplay: {first}")
    for line in rest[-MOST_LINES:]:
        say(f"  | {line}")


def _writable(text: str, encoding: str) -> str:
    return harmless(text, lines=True).encode(encoding, "replace").decode(encoding)


def _give_up_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        _give_up(stream)


def _give_up(stream: Any) -> None:
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
