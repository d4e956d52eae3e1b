"""Rare garbage collection in processes that import large packages."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Makes garbage collection rare in this process.

    The objects of large packages are never freed, and scanning them takes a fifth of the import time.
    """
    gc.set_threshold(50_000, 20, 50)
