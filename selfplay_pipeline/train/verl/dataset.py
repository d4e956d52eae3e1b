"""Stored trajectories as a verl dataset: one item is one group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch.utils.data import Dataset

from selfplay_pipeline.convert.rows import TRAINED, TURN, WEIGHT
from selfplay_pipeline.train.groups import Group, read_data

COLUMNS = ["prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_model", "extra_info"]


class GroupDataset(Dataset):  # type: ignore[misc]
    """Groups with a signal, in the order of the files; item i only names its position.

    verl assigns one uid per item and normalises rewards within a uid, so a group must be one item. Items do not contain
    trajectories: the replay manager fetches them by position with `rows`.
    """

    def __init__(self, data_files: Any, config: Any, **kwargs: Any) -> None:
        files = [data_files] if isinstance(data_files, str) else list(data_files)
        self.files = files
        chosen = config.selfplay
        stamps = tuple(_stamp(Path(file)) for file in files)
        self.groups, self._table = _load(tuple(files), stamps, bool(chosen.keep_zero_signal), chosen.imitated)

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, position: int) -> dict[str, Any]:
        return {"raw_prompt": [], "position": position, "index": self.groups[position].index}

    def rows(self, position: int) -> list[dict[str, Any]]:
        """Returns the rows of a group, as `convert` wrote them."""
        found: list[dict[str, Any]] = self._table.take(list(self.groups[position].rows)).to_pylist()
        return found

    def row_name(self, position: int, episode: int, seat: int, turn: int) -> str:
        """Returns the file, number and episode of a row as text, for messages."""
        group = self.groups[position]
        for number, row in zip(group.rows, self.rows(position), strict=True):
            info = row["extra_info"]
            if (info["episode"], info["seat"], row.get(TURN, 0)) == (episode, seat, turn):
                before = sum(pq.read_metadata(file).num_rows for file in self.files[: group.file])
                return f"{self.files[group.file]}, row {number - before} ({info['episode_id']}, seat {seat})"
        raise KeyError((position, episode, seat, turn))


def _stamp(path: Path) -> tuple[int, ...]:
    """Returns numbers that change when a file is replaced or rewritten."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=2)
def _load(
    files: Sequence[str], stamps: Sequence[tuple[int, ...]], keep_zero_signal: bool, imitated: int | None
) -> tuple[list[Group], pa.Table]:
    paths = [Path(file) for file in files]
    groups = read_data(paths, alone=imitated == 0).to_train(keep_zero_signal, imitated)
    return groups, pa.concat_tables([_table(path) for path in paths])


def _table(path: Path) -> pa.Table:
    there = [name for name in pq.read_schema(path).names if name in (*COLUMNS, WEIGHT, TRAINED, TURN)]
    return pq.read_table(path, columns=there)
