"""The error for mistakes that the user can fix, and one-line texts of other errors."""

from __future__ import annotations

from collections.abc import Mapping


class UserError(Exception):
    """A mistake that the user can fix: bad input, bad option, missing file.

    The message is one line that says what is wrong, where, and what to do next. The command line prints
    it without a traceback and exits with code 2.
    """

    def naming(self, options: Mapping[str, str]) -> str:
        """Returns the message, which may name the options of the command line that set the values in it.

        Args:
            options: Options by the key or the parameter that each sets.
        """
        return str(self)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's text, or its type if it has no text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
