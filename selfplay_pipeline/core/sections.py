"""The base of all sections of the configuration, with the limits of plausible values."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

LARGEST = 2**31 - 1
"""No key has a use for a larger number, and libraries below take no larger seed."""


@dataclass(frozen=True)
class Option:
    """Names a field's option where it is not the field's own name: `Annotated[str, Option("--engine")]`."""

    name: str


class UsedBy:
    """Says which commands use a field, or all fields of a section that have no such mark of their own.

    A command refuses a key that a file sets to another value than its default, if the command does the work of the
    key's section (`uses.py: WORK`) and neither uses the key nor has anything in its place. `doctor` and `config` look
    at all keys.

    Attributes:
        commands: the commands that use it.
        instead: other commands that do the work of the section, and what each has in its place: another key, an option,
            or what it always does.
    """

    def __init__(self, *commands: str, instead: Mapping[str, str] = {}) -> None:
        self.commands = frozenset(commands)
        self.instead = dict(instead)


class Identity:
    """Says for which commands a field, or a whole section, is part of what makes two runs the same run.

    The commands are `generate`, `evaluate` (as which `crossplay` plays its pairs), `imitate`, `train`,
    `train-online` and `iterate`.

    `Annotated[int, Identity("iterate")]` decides for `iterate` alone, `Annotated[int, FREE]` for no command. A field
    without this mark decides for every command that uses it (`UsedBy`), so that a new field is compared unless somebody
    says that it may change.
    """

    def __init__(self, *commands: str) -> None:
        self.commands = frozenset(commands)


FREE = Identity()
"""Marks what a continued run may set anew: it does not decide what is played, learned or compared."""


class Section(BaseModel):
    """A part of the configuration: unknown keys, infinite, NaN and absurd numbers are refused, and numbers are numbers.

    A whole number is taken where one with a fraction is wanted, but no other kind for another. The docstring below a
    field is what its option's help, `selfplay config` and docs/options.md say of it.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _plausible(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        found = kinds(cls.model_fields[str(info.field_name)].annotation)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, bool) and bool not in found and found & {int, float}:
                raise ValueError(f"expected a number, found {str(one).lower()}")
            with_fraction = isinstance(one, float) or (isinstance(one, str) and "." in one)
            if with_fraction and int in found and float not in found:
                raise ValueError(f"expected a whole number, found {one}")
            if isinstance(one, str):
                _check_text(one)
        checked = validate(value)
        for one in checked if isinstance(checked, list) else [checked]:
            if isinstance(one, int | float) and abs(one) > LARGEST:
                raise ValueError(f"the largest number is {LARGEST}")
        return checked


def kinds(annotation: Any) -> set[Any]:
    """The types that an annotation such as `Annotated[int, …] | None` is made of."""
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    return {annotation}.union(*map(kinds, parts))


def _check_text(text: str) -> None:
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError(f"holds the control character U+{ord(character):04X}; remove it")
