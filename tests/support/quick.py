"""What `make test-fast` leaves out: the slower cases of a parametrised test, and most random examples."""

from collections.abc import Container, Iterable
from typing import Any

import pytest
from hypothesis import settings


def long_but(quick: Container[Any], values: Iterable[Any]) -> list[Any]:
    """Returns all values, with the mark `long` on all but the quick ones."""
    return [value if value in quick else pytest.param(value, marks=pytest.mark.long) for value in values]


def examples(number: int) -> settings:
    """Returns settings for this number of random examples, and for a quarter of them in `make test-fast`.

    A number that a test gives to Hypothesis itself would hold in both.
    """
    return settings(max_examples=max(1, number * settings.default.max_examples // 100))
