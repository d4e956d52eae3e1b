"""Ray gives a node 30 seconds to start, too few on a machine that does much else. Here it is given more."""

import sys
import time
from collections.abc import Callable
from typing import Any

from ray._private import services
from ray.scripts.scripts import main

PATIENCE = 300.0
"""Seconds."""


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray's function that looks for a node that has just begun, made to wait for it."""

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
    services.get_node = patient(services.get_node)
    sys.exit(main())
