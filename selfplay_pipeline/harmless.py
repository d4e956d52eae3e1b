"""Text of models and files on a terminal."""

from __future__ import annotations


def harmless(text: str, *, lines: bool = False) -> str:
    """Text without what would steer a terminal: control characters become visible, ones that turn text around go.

    A model's words, an id, a file's name may hold any escape sequence.

    Args:
        lines: line breaks and tabs may stay.
    """
    return "".join(character if lines and character in "\n\t" else _harmless(character) for character in text)


def _harmless(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if 0x7F <= code < 0xA0 or 0x200E <= code <= 0x200F or 0x2028 <= code <= 0x202E or 0x2066 <= code <= 0x2069:
        return "�"
    return character
