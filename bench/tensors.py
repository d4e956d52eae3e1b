"""Writes the rows of a parquet file as the trainer gets them: `python bench/tensors.py train.parquet tensors.npz`.

`same_as` runs this file with the modules of an earlier revision, and with those of this one.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch

TRAIN = "selfplay_pipeline.train"
ROOM = "verl" if find_spec(f"{TRAIN}.verl") else "verl_ext"  # the name of the folder in earlier revisions
trajectory_fields = import_module(f"{TRAIN}.{ROOM}.replay").trajectory_fields

arrays = defaultdict(list)
for row in pq.read_table(sys.argv[1]).to_pylist():
    fields = trajectory_fields(row)
    tensors = {f"verl/{name}": value for name, value in fields.items() if torch.is_tensor(value)}
    for name, value in tensors.items():
        arrays[name].append(value.numpy())
        arrays[f"{name}/shape"].append(np.array(value.shape))
joined: dict[str, Any] = {name: np.concatenate(values) for name, values in arrays.items()}
np.savez(sys.argv[2], **joined)
