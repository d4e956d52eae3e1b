"""Keys of the configuration, as shown by the commands' options, `selfplay config` and docs/options.md.

The name, values and meaning of a key are written once, at its field: the type, the bounds, and the docstring below it.
The docstring's first paragraph is the option's help; further paragraphs appear only in the YAML file and on the page.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic.fields import FieldInfo

from selfplay_pipeline.core.sections import Option, Section, UsedBy, kinds

COMMENT_WIDTH = 100
MAPPING = "names and values in braces"
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}
OF_MACHINE = frozenset({"engine.data_parallel", "generate.max_concurrency", "train.gpus_per_node"})
"""Keys whose numbers follow from the machine's GPUs unless they are given; `null` in a file means not given."""


@dataclass(frozen=True)
class Key:
    """One key of the configuration, with the metadata of its field.

    Attributes:
        name: Name with its section, such as `generate.num_episodes`.
        used: Commands that use the key; None if all do.
    """

    name: str
    field: FieldInfo
    used: UsedBy | None = None

    def is_used_by(self, command: str) -> bool:
        """Whether the key has an effect on a command."""
        return self.used is None or command in self.used.commands

    @property
    def section(self) -> str:
        """Section of the key; empty for keys outside all sections."""
        return self.name.rpartition(".")[0]

    @property
    def option(self) -> str:
        """Option that sets the key, such as `--num-episodes`."""
        named = [mark.name for mark in self.field.metadata if isinstance(mark, Option)]
        return named[0] if named else "--" + self.name.rpartition(".")[2].replace("_", "-")

    @property
    def help(self) -> str:
        """Short meaning of the key."""
        return " ".join(self.text.partition("\n\n")[0].split())

    @property
    def text(self) -> str:
        """Whole docstring of the field, in paragraphs."""
        return self.field.description or ""

    @property
    def kind(self) -> type:
        """Type of one value: bool, int, float or str."""
        found = kinds(self.field.annotation)
        return next((kind for kind in KINDS if kind in found), str)

    @property
    def is_list(self) -> bool:
        return any(get_origin(kind) is list for kind in kinds(self.field.annotation))

    @property
    def choices(self) -> tuple[str, ...]:
        """Allowed words; empty if other values are allowed too."""
        literal = [kind for kind in kinds(self.field.annotation) if get_origin(kind) is Literal]
        return get_args(literal[0]) if literal else ()

    @property
    def values(self) -> str:
        """Allowed values, in words."""
        if get_origin(self.field.annotation) is dict:
            return MAPPING
        words = listed(self.choices) or (SEVERAL if self.is_list else KINDS)[self.kind]
        return ", ".join(filter(None, ["a list of " * self.is_list + words, self.limits]))

    @property
    def limits(self) -> str:
        """Bounds of the value, in words."""
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        return " and ".join(f"{say} {self.bound(name)}" for name, say in words.items() if self.bound(name) is not None)

    def bound(self, name: str) -> Any:
        """Returns the bound `ge`, `gt`, `le` or `lt`; None if the key does not have it."""
        return next((getattr(mark, name) for mark in self.field.metadata if hasattr(mark, name)), None)


def keys(section: type[Section], above: str = "", used: UsedBy | None = None) -> Iterator[Key]:
    """Yields all keys of a section and of the sections in it, in order.

    Args:
        above: Name of the section, with a dot at its end.
        used: Mark of the section.
    """
    for name, field in section.model_fields.items():
        inner, mark = sections(field.annotation), used_by(field) or used
        for kind in inner:
            yield from keys(kind, f"{above}{name}.", mark)
        if not inner:
            yield Key(above + name, field, mark)


def used_by(field: FieldInfo) -> UsedBy | None:
    """Returns the mark that names the commands that use a field; None if the field has no mark."""
    return next((mark for mark in field.metadata if isinstance(mark, UsedBy)), None)


def sections(annotation: Any) -> list[type[Section]]:
    """Returns the classes of sections in a field's type, sorted by name; several if the type is a union.

    A list of sections is one value, so it has none.
    """
    if get_origin(annotation) is list:
        return []
    found = (kind for kind in kinds(annotation) if isinstance(kind, type) and issubclass(kind, Section))
    return sorted(found, key=lambda kind: kind.__name__)


def listed(words: Sequence[str], last: str = "or") -> str:
    """Returns several words as `one, two or three`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def value_of(config: Section, name: str) -> Any:
    """Returns the value of a key; None for a key that this configuration lacks, such as another game's."""
    for part in name.split("."):
        config = getattr(config, part, None)  # type: ignore[assignment]
    return config


def as_yaml(section: Section) -> str:
    """Returns a configuration as a file for `--config`: every key with its value, below a comment with its meaning."""
    return "\n".join(_lines(section)).strip("\n")


def _lines(section: Section, above: str = "") -> Iterator[str]:
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from ("", *_comment(inspect.getdoc(type(value)) or ""), f"{name}:")
            yield from textwrap.indent("\n".join(_lines(value, f"{above}{name}.")), "  ").splitlines()
        elif above + name in OF_MACHINE and name not in section.model_fields_set:
            yield from (*_comment(field.description or ""), f"{name}: null  # {value} on this machine")
        elif name in values:
            yield from _comment(field.description or "")
            yield from yaml.safe_dump({name: values[name]}, sort_keys=False, allow_unicode=True).splitlines()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH)]
