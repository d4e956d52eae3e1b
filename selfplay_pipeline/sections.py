"""What all sections of the configuration have in common: which values are plausible at all."""

from __future__ import annotations

import unicodedata
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, ValidatorFunctionWrapHandler, field_validator

LARGEST = 2**31 - 1
"""No key has a use for a larger number, and libraries below take no larger seed."""


class Section(BaseModel):
    """A part of the configuration: unknown keys, infinite, NaN and absurd numbers are refused, and numbers are numbers.

    A whole number is taken where one with a fraction is wanted, but no other kind for another.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="wrap")
    @classmethod
    def _plausible(cls, value: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if isinstance(value, bool) and bool not in kinds and kinds & {int, float}:
            raise ValueError(f"expected a number, found {str(value).lower()}")
        if isinstance(value, float) and int in kinds and float not in kinds:
            raise ValueError(f"expected a whole number, found {value}")
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                _check_text(text)
        checked = validate(value)
        if isinstance(checked, int | float) and abs(checked) > LARGEST:
            raise ValueError(f"the largest number is {LARGEST}")
        return checked


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation such as `Annotated[int, …] | None` is made of."""
    parts = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    return {annotation}.union(*map(_kinds, parts))


def _check_text(text: str) -> None:
    for character in text:
        if unicodedata.category(character) in ("Cc", "Cs"):
            raise ValueError(f"holds the control character U+{ord(character):04X}; remove it")
