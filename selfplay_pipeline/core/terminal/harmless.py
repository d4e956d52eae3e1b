"""Text of models, files and options, made safe for a terminal."""

from __future__ import annotations

LONGEST_LINE = 2_000
"""Default limit of `one_line`, in characters."""
LONGEST_TEXT = 4_000
"""Largest number of characters of a text that a person writes; a longer one is refused as a whole."""


def _marks() -> dict[int, str]:
    """Returns a replacement for each character that controls a terminal, reverses text or cannot be encoded."""
    pictures = {code: chr(0x2400 + code) for code in range(0x20)}
    steering = [*range(0x7F, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
    return pictures | dict.fromkeys([*steering, *range(0xD800, 0xE000)], "�")


_LINES = {code: mark for code, mark in _marks().items() if chr(code) not in "\n\t"}
_ONE_LINE = _marks() | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


def harmless(text: str, *, lines: bool = False) -> str:
    """Replaces control characters, marks that reverse text, and surrogates by visible signs.

    A completion, an id or a file name may contain any escape sequence.

    Args:
        lines: Whether line breaks and tabs may stay.
    """
    return text.translate(_LINES if lines else _ONE_LINE)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Returns text as one harmless line; a long text loses its middle, because a message ends with advice."""
    if len(text) > longest:
        end = longest // 4
        text = f"{text[: longest - end]} … {text[-end:]}"
    return harmless(text)


def shorten(text: str, longest: int) -> str:
    """Returns the text, cut to `longest` characters, with the number of omitted characters."""
    more = len(text) - longest
    return text if more <= 0 else f"{text[:longest]} … ({more} more characters)"
