"""The one place that prints. No text that is printed can steer the terminal; only rich's own styles do."""

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
"""Lines of a failure, such as the end of a log."""


class Terminal(Console):
    """rich's console for text that others wrote: neither markup nor emoji codes nor control characters act.

    rich adds its styles after the text of a segment was cleaned, and marks its own control codes as such.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"highlight": False, "markup": False, "emoji": False, **options})

    @property
    def file(self) -> IO[str]:
        """The stream, beneath `Cleaned`, which would take rich's styles for somebody else's."""
        stream: Any = super().file
        return cast(IO[str], stream.beneath if isinstance(stream, Cleaned) else stream)

    @file.setter
    def file(self, stream: IO[str]) -> None:
        self._file = stream

    def render_str(self, text: str, **options: Any) -> Text:
        """Cleaned before the layout, so that columns stay straight."""
        return super().render_str(harmless(text, lines=True), **options)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        return super()._render_buffer(
            segment if segment.control else Segment(_writable(segment.text, encoding), segment.style)
            for segment in buffer
        )

    def on_broken_pipe(self) -> None:
        """Whoever read the output has gone: end quietly."""
        _give_up_streams()
        raise SystemExit(1)


class Cleaned:
    """A stream for those who write to it past `Terminal`: libraries, warnings, tracebacks, the parser of options."""

    def __init__(self, beneath: TextIO) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        """Write the text without what steers a terminal. A carriage return stays for progress bars of libraries."""
        self.beneath.write("\r".join(_writable(part, self.beneath.encoding) for part in text.split("\r")))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


console = Terminal(stderr=True)
"""Console of bars and tables, so that lines can appear above them."""


def guard() -> None:
    """Clean also what is written to the standard streams by others than this module.

    The hub's library says only what has failed: it warns of every attempt, and then of the failure.
    """
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, Cleaned):
            setattr(sys, name, Cleaned(stream))


def flush() -> None:
    """Write the buffered rest to stdout.

    Raises:
        OSError: stdout cannot be written.
    """
    if sys.stdout is not None:  # None where a command is started with stdout closed
        sys.stdout.flush()


def give_up_stdout() -> None:
    """Drop what cannot be written to stdout."""
    _give_up(sys.stdout)


def finish() -> None:
    """Write what is left, unless nobody reads it any more."""
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (BrokenPipeError, ValueError):
        _give_up_streams()


def result(text: str) -> None:
    """Print what a command was asked for, on stdout; it may have several lines."""
    Terminal().print(text, soft_wrap=True)


def say(line: str) -> None:
    """Print one line for people, on stderr; above a bar or a table if one is drawn."""
    console.print(one_line(line), soft_wrap=True)


def say_failure(message: str) -> None:
    """Print why a command failed: one line, and indented below it what follows, such as the end of a log."""
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
