"""Templates from untrusted folders: they turn values into text, and can do nothing else.

Jinja's sandbox keeps them away from the program. They may use only features with which no template runs long or grows
large: text, `{{ }}`, `if`, `for` and `set`, some filters, and methods of strings that do not lengthen them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, cast

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from selfplay_pipeline.core.errors import UserError, first_line

LONGEST_FILE = 2**16
"""Largest size of a template in bytes."""
LONGEST_TEXT = 2**20
"""Largest number of characters of a rendered text, and of any part of it."""
MOST_ROUNDS = 100_000
"""Largest number of loop rounds in one rendering, of all loops together."""

METHODS = (
    "capitalize", "casefold", "count", "endswith", "find", "get", "index", "isalpha", "isdigit", "items", "keys",
    "lower", "lstrip", "removeprefix", "removesuffix", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "swapcase", "title", "upper", "values",
)  # fmt: skip
PLAIN_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "first", "float", "int", "last", "length", "lower", "max", "min",
    "reject", "reverse", "round", "select", "sort", "string", "sum", "title", "tojson", "trim", "unique", "upper",
)  # fmt: skip
REFUSED = {
    nodes.Macro: "macro", nodes.CallBlock: "call", nodes.FilterBlock: "filter", nodes.AssignBlock: "set … endset",
    nodes.Include: "include", nodes.Import: "import", nodes.FromImport: "import", nodes.Extends: "extends",
    nodes.Block: "block", nodes.Pow: "**",
}  # fmt: skip
"""Features that could loop for ever or make long text from short text; no prompt needs them."""

_FAILURES = (
    TemplateError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError, MemoryError,
)  # fmt: skip
"""Errors that rendering may raise."""

_rounds: ContextVar[list[int]] = ContextVar("rounds")


class PromptTemplate:
    """A template that can only produce text."""

    def __init__(self, path: Path, key: str) -> None:
        """Args:
        key: Key of the configuration, for messages.

        Raises:
            UserError: The file cannot be read, or is not an allowed template.
        """
        self._path, self._key = path, key
        try:
            if not path.is_file():
                raise UserError(f"{key}: {path}: no such file")
            if path.stat().st_size > LONGEST_FILE:
                raise UserError(f"{key}: {path}: longer than {LONGEST_FILE} bytes, too long for a prompt template")
            source = path.read_text("utf-8")
        except OSError as error:
            raise UserError(f"{key}: {path}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"{key}: {path}: not text in UTF-8") from None
        self.source = source
        try:
            code = _ENVIRONMENT.compile(source, path.name, str(path))
        except (TemplateSyntaxError, RecursionError, SyntaxError, ValueError, OverflowError, MemoryError) as error:
            raise self._error(error) from None
        self._template = _ENVIRONMENT.template_class.from_code(_ENVIRONMENT, code, dict(_ENVIRONMENT.globals))

    def render(self, **values: Any) -> str:
        """Returns the text without surrounding white space.

        Raises:
            UserError: The template uses a value that is missing, or exceeds a limit.
        """
        token = _rounds.set([MOST_ROUNDS])
        parts, length = [], 0
        try:
            for part in self._template.generate(**values):
                length += len(part)
                if length > LONGEST_TEXT:
                    raise SecurityError(f"more than {LONGEST_TEXT} characters")
                parts.append(part)
        except (
            TemplateError,
            ArithmeticError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:
            raise self._error(error) from None
        finally:
            _rounds.reset(token)
        return "".join(parts).strip()

    def _error(self, error: Exception) -> UserError:
        line = error.lineno if isinstance(error, TemplateSyntaxError) else _line_of(error, str(self._path))
        place = f"{self._path}:{line}" if line else str(self._path)
        return UserError(f"{self._key}: {place}: {first_line(error)}")


def _line_of(error: Exception, file: str) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class _Bounds(NodeTransformer):
    """Refuses features that prompts do not need, and limits loops and variables."""

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if type(node) in REFUSED:
            raise TemplateSyntaxError(f"{REFUSED[type(node)]!r} cannot be used in a prompt template", node.lineno)
        return super().generic_visit(node, *args, **kwargs)

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "counted")
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Node:
        self.generic_visit(node)
        node.node = _filtered(node.node, "bounded")
        return node


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    left = _rounds.get()
    for value in values:
        left[0] -= 1
        if left[0] < 0:
            raise SecurityError(f"more than {MOST_ROUNDS} rounds of loops")
        yield value


def _bounded(value: Any) -> Any:
    """Returns the value; refuses a value that would be a long text."""
    left, stack = LONGEST_TEXT, [value]
    while stack:
        part = stack.pop()
        if isinstance(part, dict):
            stack += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            stack += part
        left -= 1 + (len(part) if isinstance(part, str | list | tuple | dict) else 0)
        if left < 0:
            raise SecurityError(f"a value of more than {LONGEST_TEXT} characters")
    return value


def _join(values: Iterable[Any], separator: str = "") -> str:
    texts = [str(value) for value in _counted(values)]
    if sum(map(len, texts)) + len(separator) * len(texts) > LONGEST_TEXT:
        raise SecurityError(f"a text of more than {LONGEST_TEXT} characters")
    return separator.join(texts)


def _replace(text: str, old: str, new: str) -> str:
    if len(text) + (str(text).count(old) + 1) * len(new) > LONGEST_TEXT:
        raise SecurityError(f"a text of more than {LONGEST_TEXT} characters")
    return str(text).replace(old, new)


def _range(*arguments: int) -> range:
    numbers = range(*arguments)
    if len(numbers) > MOST_ROUNDS:
        raise SecurityError(f"a range of more than {MOST_ROUNDS} numbers")
    return numbers


class _PromptEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Bounds().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        numbers = all(type(value) in (int, float, bool) and abs(value) < 2**31 for value in (left, right))
        if operator in "*%" and not numbers:
            raise SecurityError(f"{operator!r} is for numbers only")
        return _bounded(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        allowed = __obj is _range or (
            getattr(__obj, "__name__", None) in METHODS
            and isinstance(getattr(__obj, "__self__", None), str | dict | list | tuple)
        )
        if isinstance(getattr(__obj, "__self__", None), str) and __obj.__name__ in ("join", "replace"):
            text = __obj.__self__
            return _join(args[0], text) if __obj.__name__ == "join" else _replace(text, *args)
        if not allowed:
            raise SecurityError(f"{getattr(__obj, '__name__', type(__obj).__name__)} cannot be called in a template")
        return super().call(__context, __obj, *args, **kwargs)


def _environment() -> _PromptEnvironment:
    environment = _PromptEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    own: dict[str, Callable[..., Any]] = {
        "counted": _counted, "bounded": _bounded, "join": _join, "replace": _replace,
    }  # fmt: skip
    environment.filters = {name: FILTERS[name] for name in PLAIN_FILTERS} | own
    environment.globals = {"range": _range}
    return environment


_ENVIRONMENT = _environment()
