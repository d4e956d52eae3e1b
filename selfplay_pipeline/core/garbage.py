"""How often Python looks for garbage."""

from __future__ import annotations

import gc


def collect_seldom() -> None:
    """Let this process look seldom: what large packages make while they are imported stays, and looking through it
    again and again takes a fifth of the time."""
    gc.set_threshold(50_000, 20, 50)
