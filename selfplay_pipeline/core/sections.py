"""The base class of all sections of the configuration, with limits of plausible values."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

from selfplay_pipeline.core.command_line import LARGEST


@dataclass(frozen=True)
class Option:
    """Mark of a field whose option has another name than the field: `Annotated[str, Option("--engine")]`."""

    name: str


class UsedBy:
    """Mark of a field, or of a section whose fields have no mark of their own, with the commands that use it.

    A field without any mark is used by all commands. A command that neither uses nor refuses a key ignores it, so that
    one file can configure all commands.

    Attributes:
        commands: Commands that use the field.
        refused_by: Commands that refuse a file in which the field is not at its default, because the user may expect
            an effect.
    """

    def __init__(self, *commands: str, refused_by: Collection[str] = ()) -> None:
        self.commands = frozenset(commands)
        self.refused_by = frozenset(refused_by)


class Section(BaseModel):
    """A part of the configuration: refuses unknown keys, infinite and NaN numbers, and implausibly large ones.

    No value is converted to another type, except a whole number to a float. The docstring below a field
    is its text in the option's help, `selfplay config` and docs/options.md.
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
    """Returns the types that make up an annotation such as `Annotated[int, …] | None`."""
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    return {annotation}.union(*map(kinds, parts))


def _check_text(text: str) -> None:
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError(f"holds the control character U+{ord(character):04X}; remove it")
