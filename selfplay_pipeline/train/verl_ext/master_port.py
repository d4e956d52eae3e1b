"""The port where the workers of one machine meet is reserved until they do.

verl 0.9.1 picks a free port, and the first worker listens there only when it has imported all that it needs. By then
another process may have got it.
"""

from __future__ import annotations

import os
from typing import Any

from verl.single_controller.ray import RayWorkerGroup

from selfplay_pipeline.loopback import ADDRESS, SWITCH, held_port


def _reserve(group: Any, *_: Any, **__: Any) -> None:
    """Sets the address where the group's workers meet, unless it is set."""
    if group._master_port is None:
        group._master_addr, group._master_port = ADDRESS, str(held_port())


if os.environ.get(SWITCH) == "1":
    RayWorkerGroup._get_master_addr_port = _reserve
