"""Ray gives a node 30 seconds to start, which are too few on a loaded machine. Here it gets more."""

import sys
import time
from collections.abc import Callable
from typing import Any

from ray._private import services

PATIENCE = 300.0
"""Seconds."""


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `get_node` that tries again until the node is there, for PATIENCE seconds."""

    def wait_for_node(*where: Any) -> Any:
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return get_node(*where)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    return wait_for_node


if __name__ == "__main__":
    from ray.scripts.scripts import main

    services.get_node = patient(services.get_node)
    sys.exit(main())
