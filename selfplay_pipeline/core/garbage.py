"""What processes keep in memory so as not to lose time: garbage, and freed blocks."""

from __future__ import annotations

import gc

KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
"""Environment variables with which glibc keeps large freed blocks, up to 4 GiB, for the next ones.

Without them it returns each to the system, and a pass on a CPU faults all its pages in again: a tenth of the time of
SmolLM2, playing and training.
"""


def collect_seldom() -> None:
    """Makes garbage collection rare in this process.

    The objects of large packages are never freed, and scanning them takes a fifth of the import time.
    """
    gc.set_threshold(50_000, 20, 50)
