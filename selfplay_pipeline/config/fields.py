"""The keys of the configuration, as options, `selfplay config` and docs/options.md show them.

What a key is called, which values it takes and what it means is written once, at its field: the type, the bounds, and
the docstring below it. The docstring's first paragraph is the option's help; a further one is left to YAML and page.
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
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
SEVERAL = {int: "whole numbers", float: "numbers", str: "texts"}


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        name: with its section, such as `generate.num_episodes`.
        used: which commands use it; None where all do.
    """

    name: str
    field: FieldInfo
    used: UsedBy | None = None

    @property
    def section(self) -> str:
        """The section that it stands in; empty for keys outside all sections."""
        return self.name.rpartition(".")[0]

    @property
    def option(self) -> str:
        """The option that gives it, such as `--num-episodes`."""
        named = [mark.name for mark in self.field.metadata if isinstance(mark, Option)]
        return named[0] if named else "--" + self.name.rpartition(".")[2].replace("_", "-")

    @property
    def help(self) -> str:
        """Short meaning of the key."""
        return " ".join(self.text.partition("\n\n")[0].split())

    @property
    def text(self) -> str:
        """All that its docstring says, in paragraphs."""
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
        """The words that it takes; empty where it takes others too."""
        literal = [kind for kind in kinds(self.field.annotation) if get_origin(kind) is Literal]
        return get_args(literal[0]) if literal else ()

    @property
    def values(self) -> str:
        """Allowed values, in words."""
        words = listed(self.choices) or (SEVERAL if self.is_list else KINDS)[self.kind]
        return ", ".join(filter(None, ["a list of " * self.is_list + words, self.limits]))

    @property
    def limits(self) -> str:
        """Bounds of the value, in words."""
        words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
        return " and ".join(f"{say} {self.bound(name)}" for name, say in words.items() if self.bound(name) is not None)

    def bound(self, name: str) -> Any:
        """One of the bounds `ge`, `gt`, `le` and `lt`; None where there is none."""
        return next((getattr(mark, name) for mark in self.field.metadata if hasattr(mark, name)), None)


def keys(section: type[Section], above: str = "", used: UsedBy | None = None) -> Iterator[Key]:
    """All keys of a section and of those in it, in their order.

    Args:
        above: the section's own name, with a dot.
        used: the section's own mark.
    """
    for name, field in section.model_fields.items():
        inner, mark = sections(field.annotation), used_by(field) or used
        for kind in inner:
            yield from keys(kind, f"{above}{name}.", mark)
        if not inner:
            yield Key(above + name, field, mark)


def used_by(field: FieldInfo) -> UsedBy | None:
    """The mark of a field that says which commands use it; None where it has none."""
    return next((mark for mark in field.metadata if isinstance(mark, UsedBy)), None)


def sections(annotation: Any) -> list[type[Section]]:
    """The sections that a field may hold; several where it is a union."""
    found = (kind for kind in kinds(annotation) if isinstance(kind, type) and issubclass(kind, Section))
    return sorted(found, key=lambda kind: kind.__name__)


def listed(words: Sequence[str], last: str = "or") -> str:
    """Several words as `one, two or three`."""
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def value_of(config: Section, name: str) -> Any:
    """The value of a key; None where the section that is there has no such key."""
    for part in name.split("."):
        config = getattr(config, part, None)  # type: ignore[assignment]
    return config


def as_yaml(section: Section) -> str:
    """A configuration as a file for `--config`: every key with its value, and above it what it means."""
    return "\n".join(_lines(section)).strip("\n")


def _lines(section: Section) -> Iterator[str]:
    values = section.model_dump(mode="json")
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from ("", *_comment(inspect.getdoc(type(value)) or ""), f"{name}:")
            yield from textwrap.indent("\n".join(_lines(value)), "  ").splitlines()
        else:
            yield from _comment(field.description or "")
            yield from yaml.safe_dump({name: values[name]}, sort_keys=False, allow_unicode=True).splitlines()


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH)]
