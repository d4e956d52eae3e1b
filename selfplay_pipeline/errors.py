"""The one error type that means "the user can fix this"."""


class UserError(Exception):
    """A mistake that the user can mend: bad input, bad option, missing file.

    The message is one line that says what is wrong, where, and what to do next. The command line prints
    it without a traceback and exits with code 2.
    """
