"""Reserves the port where the workers of one machine meet, until they have met.

verl 0.9.1 picks a free port, and the first worker listens there only after all its imports. By then another process may
have taken the port.
"""

from __future__ import annotations

import os
from typing import Any

from verl.single_controller.ray import RayWorkerGroup

from selfplay_pipeline.core.loopback import ADDRESS, SWITCH, held_port


def _reserve(group: Any, *_: Any, **__: Any) -> None:
    """Set the address where the group's workers meet, unless it is set."""
    if group._master_port is None:
        group._master_addr, group._master_port = ADDRESS, str(held_port())


if os.environ.get(SWITCH) == "1":
    RayWorkerGroup._get_master_addr_port = _reserve
