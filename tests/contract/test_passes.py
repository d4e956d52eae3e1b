"""verl's own division of rows into passes, which `train.max_tokens_per_pass` limits and `train/memory.py` relies on."""

import random

import pytest
import torch
from tensordict import TensorDict
from verl.utils.metric import Metric
from verl.utils.seqlen_balancing import rearrange_micro_batches

from selfplay_pipeline.train.verl.loss import _metric

LIMIT = 8192


def passes(lengths: list[int]) -> list[list[int]]:
    """Lengths of the rows of each pass."""
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in zip(mask, lengths, strict=True):
        row[:length] = 1
    batch = TensorDict({"input_ids": mask, "attention_mask": mask}, batch_size=[len(lengths)])
    _, indices = rearrange_micro_batches(batch, max_token_len=LIMIT)
    return [[lengths[index] for index in rows] for rows in indices]


def heavy_tailed(seed: int) -> list[int]:
    drawn = random.Random(seed)
    return [min(LIMIT, int(drawn.lognormvariate(7.6, 0.7))) for _ in range(64)]


@pytest.mark.parametrize(
    "lengths", [[5000] * 3, [LIMIT] * 4, [LIMIT, 1, 1], *(heavy_tailed(seed) for seed in range(20))]
)
def test_no_pass_of_packed_rows_exceeds_the_limit_and_each_row_is_in_one(lengths: list[int]) -> None:
    found = passes(lengths)
    assert max(map(sum, found)) <= LIMIT
    assert sorted(length for rows in found for length in rows) == sorted(lengths)


def test_padding_to_the_longest_row_of_a_pass_would_double_the_limit() -> None:
    found = passes(heavy_tailed(0))
    padded = [len(rows) * max(rows) for rows in found]
    assert max(padded) > 2 * LIMIT, "why rows are packed on GPUs"
    assert 1.4 < sum(padded) / sum(map(sum, found)) < 1.8


def test_a_pass_of_padding_rows_alone_gives_no_extreme_and_nothing_to_a_sum() -> None:
    found = {"gap/max": (0.001, 9.0), "weights_min": (0.999, 0.0001), "gap/mean": (0.001, 9.0)}
    for name, (real, padding) in found.items():
        both = [_metric(name, real, 2.0), _metric(name, padding, 0.0)]  # the share of one of two processes
        assert Metric.aggregate_dp(both) == pytest.approx(real)
