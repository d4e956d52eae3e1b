"""A credit for each turn, trained on with the real verl: what its loss is given are the advantages of single turns."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from test_train import build_model, log_probs, model
from training_rows import training_row, write_training_rows

from selfplay_pipeline.config.training import TrainConfig
from selfplay_pipeline.convert.rows import CREDITS
from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.train.credit import turn_advantages
from selfplay_pipeline.train.offline import run_train
from selfplay_pipeline.train.process import Trainer

__all__ = ["build_model", "model"]
GROUPS, EPISODES = 4, 3
TURNS = (2, 5)
"""Tokens of each seat's own turns; two tokens are observed between them."""


def write_credited(path: Path, policy: Path) -> Path:
    """Two seats with two own turns each, of random tokens and credits."""
    rng, rows = np.random.default_rng(0), []
    for group in range(GROUPS):
        for episode in range(EPISODES):
            for seat in (0, 1):
                mask = [1] * TURNS[0] + [0, 0] + [1] * TURNS[1]
                prompt, response = rng.integers(2, 60, 9).tolist(), rng.integers(2, 60, len(mask)).tolist()
                exact = np.array(log_probs(policy, prompt, response)) * mask
                row = training_row(
                    group, episode, seat, episode / 4, prompt=prompt, response=response, mask=mask,
                    logprobs=exact.tolist(), episodes_per_state=EPISODES, temperature=0.7,
                )  # fmt: skip
                rows.append(row | {CREDITS: rng.uniform(-1, 1, len(TURNS)).tolist()})
    return write_training_rows(path, rows, checkpoint=str(policy), weights=content_hash(str(policy)))


@pytest.mark.parametrize("by_std", [True, False])
def test_verl_trains_on_the_advantage_of_each_turn(
    model: Path, tmp_path: Path, session_trainer: Trainer, by_std: bool
) -> None:
    data = write_credited(tmp_path / "train.parquet", model)
    config = TrainConfig(
        model=str(model), data=data, output=tmp_path / "out", train_batch_size=12, kl_coef=0.05, dump_rows=True,
        device="cpu", overrides=[f"algorithm.norm_adv_by_std_in_grpo={str(by_std).lower()}"],
    )  # fmt: skip
    asyncio.run(run_train(config, trainer=session_trainer))
    groups = defaultdict[int, list[dict[str, Any]]](list)
    for row in pq.read_table(data).to_pylist():
        groups[row["extra_info"]["index"]].append(row)
    expected = {
        (group, row["extra_info"]["episode"], row["extra_info"]["seat"]): np.repeat(advantages, TURNS)
        for group, rows in groups.items()
        for row, advantages in zip(rows, turn_advantages(rows, by_std=by_std), strict=True)
    }
    dumped = [json.loads(line) for line in (config.output / "trained_rows.jsonl").read_text().splitlines()]
    found = {(row["group"], row["episode"], row["seat"]): row["advantages"] for row in dumped}
    assert found.keys() == expected.keys()
    for key, advantages in found.items():
        assert advantages == pytest.approx(expected[key], abs=1e-5)
