"""Prompt templates of users: jinja2's sandbox keeps them from Python and from files.

Only their lengths are limited: a hostile template can loop without end or take all memory.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.small_files import read_small_text

LONGEST_FILE = 2**16
"""Largest size of a template in bytes."""
LONGEST_TEXT = 2**20
"""Largest number of characters of a rendered text."""
_ENVIRONMENT = ImmutableSandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
_FAILURES = (
    TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError, MemoryError,
    SyntaxError,
)  # fmt: skip
"""Errors that compiling and rendering may raise."""


class PromptTemplate:
    """A sandboxed template: it can read the given values and produce text, and nothing else."""

    def __init__(self, path: Path, key: str) -> None:
        """Args:
        key: Key of the configuration, for messages.

        Raises:
            UserError: The file cannot be read, or is not a template.
        """
        self._path, self._key = path, key
        try:
            self.source = read_small_text(path, LONGEST_FILE)
        except UserError as error:
            raise UserError(f"{key}: {error}") from None
        try:
            code = _ENVIRONMENT.compile(self.source, path.name, str(path))
        except _FAILURES as error:
            raise self._error(error) from None
        self._template = _ENVIRONMENT.template_class.from_code(_ENVIRONMENT, code, _ENVIRONMENT.globals)

    def render(self, **values: Any) -> str:
        """Returns the text without surrounding white space.

        Raises:
            UserError: The template uses a value that is missing or forbidden, or its text is too long.
        """
        parts, length = [], 0
        try:
            for part in self._template.generate(**values):
                length += len(part)
                if length > LONGEST_TEXT:
                    raise SecurityError(f"more than {LONGEST_TEXT} characters")
                parts.append(part)
        except _FAILURES as error:
            raise self._error(error) from None
        return "".join(parts).strip()

    def _error(self, error: Exception) -> UserError:
        line = error.lineno if isinstance(error, TemplateSyntaxError) else None
        trace = error.__traceback__
        while trace is not None:  # jinja2 gives the frames of a template the template's own lines
            if trace.tb_frame.f_code.co_filename == str(self._path):
                line = trace.tb_lineno
            trace = trace.tb_next
        place = f"{self._path}:{line}" if line else str(self._path)
        return UserError(f"{self._key}: {place}: {first_line(error)}")
