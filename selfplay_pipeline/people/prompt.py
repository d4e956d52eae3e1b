"""Input of a person at a terminal: text of several lines that is checked before it is sent."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import create_output
from rich.control import Control
from rich.segment import ControlType, Segment

from selfplay_pipeline.core.terminal import Cleaned, Terminal
from selfplay_pipeline.core.terminal.harmless import LONGEST_TEXT, harmless, one_line

HELP = "?"
"""Text that shows the help."""
KEYS = "Enter: check, then send   Alt-Enter: new line   Tab: a form to fill in   ?: help   Ctrl-D: leave"


@dataclass(frozen=True)
class Checked:
    """Result of a check.

    Attributes:
        text: Text that would be sent; None if nothing may be sent.
        note: One line about the text.
    """

    text: str | None
    note: str


def is_interactive() -> bool:
    """Whether standard input and output are terminals."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def wipe(console: Terminal) -> None:
    """Clear the screen and the lines that were scrolled out of it."""
    control = Control(ControlType.CLEAR)
    control.segment = Segment("\x1b[H\x1b[2J\x1b[3J", None, [(ControlType.CLEAR,)])
    console.control(control)


class Prompt:
    """Input of one person, with a history of its own.

    Enter checks the text and shows what it is; a second Enter sends it. Until then everything can be edited. Control
    characters become visible signs.
    """

    def __init__(self) -> None:
        self._note, self._ready, self._next = "", "", 0
        self._check: Callable[[str], Checked] = lambda text: Checked(text, "")
        self._forms: Sequence[str] = ()
        self._help: Callable[[], None] = lambda: None
        self._session: PromptSession[str] = PromptSession(
            multiline=True,
            erase_when_done=True,
            history=InMemoryHistory(),
            key_bindings=self._bindings(),
            output=_output(),
        )
        self._session.default_buffer.on_text_changed += self._changed

    async def ask(self, check: Callable[[str], Checked], forms: Sequence[str], show_help: Callable[[], None]) -> str:
        """Returns a text that `check` allows.

        Args:
            check: Checks a text before it is sent.
            forms: Texts that Tab inserts in turn.
            show_help: Prints the help.

        Raises:
            EOFError: The person pressed Ctrl-D.
            KeyboardInterrupt: The person pressed Ctrl-C.
        """
        self._check, self._forms, self._help = check, forms, show_help
        self._note, self._ready, self._next = "", "", 0
        return (await self._session.prompt_async(self._above)).strip()

    def _above(self) -> str:
        width = self._session.output.get_size().columns
        return "\n".join([*textwrap.wrap(self._note or KEYS, width - 1), "> "])

    def _changed(self, buffer: Any) -> None:
        kept = harmless(buffer.text[:LONGEST_TEXT], lines=True)
        if kept != buffer.text:
            too_long = len(buffer.text) > LONGEST_TEXT
            buffer.text = kept  # calls this function again
            self._note = _too_long(LONGEST_TEXT + 1) if too_long else ""
        elif buffer.text.strip() != self._ready:
            self._note = ""

    def _bindings(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            text = buffer.text.strip()
            if text and text == self._ready:
                buffer.validate_and_handle()
            elif text == HELP:
                buffer.reset()
                run_in_terminal(self._help)
            elif text:
                checked = self._check(text)
                self._note, self._ready = one_line(checked.note), (checked.text or "").strip()
                if checked.text is not None:
                    buffer.text = checked.text
                    buffer.cursor_position = len(buffer.text)

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("tab")
        def _(event: KeyPressEvent) -> None:
            if self._forms:
                buffer = event.current_buffer
                buffer.save_to_undo_stack()
                buffer.text = self._forms[self._next % len(self._forms)]
                buffer.cursor_position = len(buffer.text)
                self._next += 1

        @keys.add("c-d")
        def _(event: KeyPressEvent) -> None:
            event.app.exit(exception=EOFError)

        @keys.add(Keys.BracketedPaste)
        def _(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if len(event.current_buffer.text) + len(text) > LONGEST_TEXT:
                self._note = _too_long(len(text))
            else:
                event.current_buffer.insert_text(text)

        return keys


async def ask_line(question: str) -> str:
    """Returns one line that a person types after a question.

    Raises:
        EOFError: The person pressed Ctrl-D.
        KeyboardInterrupt: The person pressed Ctrl-C.
    """
    session: PromptSession[str] = PromptSession(output=_output())
    return harmless(await session.prompt_async(question)).strip()


def _too_long(length: int) -> str:
    return f"a turn has at most {LONGEST_TEXT:,} characters; a text of {length:,} or more was refused or cut"


def _output() -> Any:
    """Returns prompt_toolkit's output on the real stream, since `Cleaned` would remove its styles."""
    stream: Any = sys.stdout
    return create_output(stdout=stream.beneath if isinstance(stream, Cleaned) else stream)
