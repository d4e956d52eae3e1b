"""Text of models, files and options as a terminal may show it."""

from __future__ import annotations

LONGEST_LINE = 2_000
"""Characters of a line that somebody else's text is part of."""


def _marks() -> dict[int, str]:
    """Returns a replacement of each character that steers a terminal, reverses text or cannot be written."""
    pictures = {code: chr(0x2400 + code) for code in range(0x20)}
    steering = [*range(0x7F, 0xA0), 0x061C, *range(0x200E, 0x2010), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
    return pictures | dict.fromkeys([*steering, *range(0xD800, 0xE000)], "�")


_LINES = {code: mark for code, mark in _marks().items() if chr(code) not in "\n\t"}
_ONE_LINE = _marks() | {ord("\n"): "\\n", ord("\t"): "\\t", ord("\r"): "\\r"}


def harmless(text: str, *, lines: bool = False) -> str:
    """Replaces control characters, marks that turn text around, and halves of characters by visible signs.

    A model's words, an id, a file's name may hold any escape sequence.

    Args:
        lines: line breaks and tabs may stay.
    """
    return text.translate(_LINES if lines else _ONE_LINE)


def one_line(text: str, longest: int = LONGEST_LINE) -> str:
    """Text in one harmless line; of one that is too long the beginning and the end, which says what to do."""
    if len(text) > longest:
        end = longest // 4
        text = f"{text[: longest - end]} … {text[-end:]}"
    return harmless(text)
