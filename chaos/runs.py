"""Checks that trainings and whole runs equal undisturbed ones."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from chaos.traces import contents_of


def problems_of_run(run: Path, iterations: int, ids: Collection[str], epochs: int) -> list[str]:
    """Returns the faults of a finished run of `iterate` that trains on all groups.

    Args:
        run: Folder of the run.
        iterations: Number of its iterations.
        ids: Ids of the episodes of all iterations in an undisturbed run.
        epochs: Number of epochs of each training.
    """
    found = []
    played: Counter[str] = Counter()
    for number in range(1, iterations + 1):
        folder = run / f"iter_{number}"
        games = contents_of(folder, texts=False).get("selfplay_games.jsonl", Counter())
        played += games
        found += [f"iter_{number}: {problem}" for problem in problems_of_training(folder, folder, epochs)]
    missing, more = Counter(ids) - played, played - Counter(ids)
    found += [f"{missing.total()} episodes are missing, such as {next(iter(missing))}"] if missing else []
    found += [f"{more.total()} episodes are twice or others, such as {next(iter(more))}"] if more else []
    return found + temporaries(run)


def problems_of_training(folder: Path, data: Path, epochs: int) -> list[str]:
    """Returns the faults of a training on all groups of `train.parquet` in the folder `data`."""
    try:
        groups = _groups(data / "train.parquet")
        if (data / "val.parquet").exists():
            pq.read_table(data / "val.parquet")
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError, pa.ArrowException) as error:
        return [f"{type(error).__name__}: {str(error).splitlines()[0]}"]
    found = []
    steps = [line["step"] for line in lines]
    if not steps or steps != list(range(1, len(steps) + 1)):
        found.append(f"metrics.jsonl has the steps {steps}")
    seen = Counter(group for line in lines for _, group in line["groups"])
    if seen != Counter(dict.fromkeys(groups, epochs)):
        found.append(f"groups were not all trained on {epochs} times: {dict(seen)}")
    return found + problems_of_checkpoint(folder / "checkpoint")


def _groups(path: Path) -> set[int]:
    rows: list[dict[str, Any]] = pq.read_table(path, columns=["extra_info"]).to_pylist()
    return {row["extra_info"]["index"] for row in rows}


def problems_of_checkpoint(folder: Path) -> list[str]:
    """Returns the faults of a checkpoint that cannot be loaded, or whose weights are not finite."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder)
    except (OSError, ValueError, RuntimeError) as error:
        return [f"the checkpoint cannot be loaded: {str(error).splitlines()[0]}"]
    finite = all(bool(torch.isfinite(weights).all()) for weights in model.parameters())
    return [] if finite else ["the checkpoint holds weights that are not finite"]


def temporaries(folder: Path) -> list[str]:
    """Returns messages on temporary files that were left."""
    return [f"{path.relative_to(folder)} was left" for path in folder.rglob("*.tmp")]
