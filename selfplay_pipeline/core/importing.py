"""Importing large packages in the processes that are started here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing() -> Iterator[None]:
    """Do not look for garbage meanwhile: an import keeps nearly all that it makes, and looking takes a fifth of it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
