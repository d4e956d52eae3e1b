"""YAML files of users: checked before any object is built, with the line of every mistake."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.small_files import read_small_text

MOST_BYTES, MOST_EVENTS, DEEPEST = 100_000, 10_000, 20


class _Loader(yaml.SafeLoader):
    """Loader that reads plain values as null, true, false, whole numbers, numbers with a point, or text; no value
    becomes a date.

    It leaves out YAML 1.1's sexagesimal (`1:30`), octal (`010`), hexadecimal and binary numbers, which nobody intends.
    """

    yaml_implicit_resolvers: dict[Any, Any] = {}


_POINT = r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"(?:yes|no|true|false|on|off)", list("yYnNtTfFoO")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]{0,20})", list("-+0123456789")),
    ("float", _POINT, list("-+0123456789.")),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$", re.I if _tag == "bool" else 0), _first
    )


@dataclass
class YamlFile:
    """Keys and values of a file, with their lines.

    Attributes:
        name: Name of the file in messages.
        base: File that this one builds on.
    """

    name: str
    node: yaml.Node | None
    data: dict[str, Any]
    base: YamlFile | None = None

    def where(self, path: list[str]) -> str:
        """Returns file, line and key for a message; the file is the one that sets the key."""
        line, found = _line(self.node, path)
        if self.base is not None and not found:
            return self.base.where(path)
        return f"{self.name}:{line}: key '{'.'.join(path)}'"


def read_yaml(path: Path, name: str = "") -> YamlFile:
    """Returns the keys and values of a YAML file, with their lines.

    Args:
        name: Name of the file in messages; its path by default.

    Raises:
        UserError: The file is missing, not a regular file, too large, or not plain YAML with keys and values.
    """
    name = name or str(path)
    text = read_small_text(path, MOST_BYTES)
    try:
        _check_events(text, name)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return YamlFile(name, None, {})
        _check_keys(node, name)
        data = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = _number(error.problem_mark or error.context_mark)
        raise UserError(f"{name}:{line}: not YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise UserError(f"{name}: expected keys and values, found {type(data).__name__}")
    return YamlFile(name, node, data)


def read_value(text: str, name: str) -> Any:
    """Returns one value, read as in a file.

    Args:
        name: Name of the value in messages.

    Raises:
        UserError: The text is empty, too long, or not plain YAML.
    """
    if not text.strip():
        raise UserError(f"{name}: an empty value is given; leave it out, or give one, such as null")
    if len(text) > MOST_BYTES:
        raise UserError(f"{name}: longer than {MOST_BYTES:,} characters; give --config a file with it")
    try:
        _check_events(text, name)
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            raise UserError(f"{name}: holds only a comment; quote a value that begins with #")
        _check_keys(node, name)
        return loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        problem = getattr(error, "problem", None) or error
        raise UserError(
            f"{name}: not YAML: {' '.join(str(problem).split())}; quote the value if it is a text"
        ) from None


def _check_events(text: str, name: str) -> None:
    """Checks the events of the parser before any object is built, so that a small file cannot take all memory.

    Raises:
        UserError: The file has too many values, deep nesting, an alias, a tag, or a second document.
    """
    depth = documents = 0
    for count, event in enumerate(yaml.parse(text, Loader=_Loader)):
        where = f"{name}:{_number(event.start_mark)}"
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        documents += isinstance(event, yaml.DocumentStartEvent)
        if count > MOST_EVENTS or depth > DEEPEST:
            what = f"nested deeper than {DEEPEST}" if depth > DEEPEST else f"more than {MOST_EVENTS:,} values"
            raise UserError(f"{where}: {what}; a configuration has far fewer")
        if documents > 1:
            raise UserError(f"{where}: a second document begins; keep one of them")
        anchor, tag = getattr(event, "anchor", None), getattr(event, "tag", None)
        if anchor is not None:
            raise UserError(f"{where}: anchors and aliases ({anchor}) are not allowed; write the values out")
        if tag is not None:
            raise UserError(f"{where}: tags ({tag}) are not allowed; write the value alone")


def _check_keys(node: yaml.Node, name: str, path: str = "") -> None:
    """Checks that each key is a name, and is given once.

    Args:
        path: Dotted keys above, with a dot at the end.
    """
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _check_keys(item, name, path)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for key, value in node.value:
            line = _number(key.start_mark)
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str" or key.value == "<<":
                what = f"key '{path}{key.value}': " if isinstance(key, yaml.ScalarNode) else ""
                raise UserError(f"{name}:{line}: {what}a key must be a name; quote it if it is meant")
            if key.value in lines:
                raise UserError(
                    f"{name}:{line}: key '{key.value}' is given in line {lines[key.value]} already; keep one of them"
                )
            lines[key.value] = line
            _check_keys(value, name, f"{path}{key.value}.")


def _line(node: yaml.Node | None, path: list[str]) -> tuple[int, bool]:
    """Returns the line of a key, or of its innermost section in the file, and whether the key itself is in the file."""
    line = 1
    for part in path:
        held = node.value if isinstance(node, yaml.MappingNode) else []
        place = next(((key, value) for key, value in held if key.value == part), None)
        if place is None:
            return line, False
        line, node = _number(place[0].start_mark), place[1]
    return line, True


def _number(mark: Any) -> int:
    """Returns the line of a mark, counted from 1; libyaml and the Python parser have different types of marks."""
    return 1 if mark is None else int(mark.line) + 1
