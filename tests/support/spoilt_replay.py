"""Stored trajectories that are spoilt below the reader that would refuse them; verl imports it by name."""

from __future__ import annotations

import math
import os
from typing import Any

from selfplay_pipeline.train.verl import replay


class SpoiltReplay(replay.ReplayManager):
    """The log-prob of one token of one row is not a number."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        rows, bad = self._dataset.rows, os.environ["SPOILT_GAME"]

        def spoilt(position: int) -> list[dict[str, Any]]:
            found = rows(position)
            for row in found:
                if row["extra_info"]["episode_id"] == bad and row["extra_info"]["seat"] == 1:
                    row["response_logprobs"][0] = math.nan
            return found

        self._dataset.rows = spoilt
