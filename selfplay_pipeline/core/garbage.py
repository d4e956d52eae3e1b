"""Rare garbage collection in processes that import large packages."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Collects garbage seldom in this process.

    The objects of large packages stay, and looking through them during an import takes a fifth of the time.
    """
    gc.set_threshold(50_000, 20, 50)
