"""Attention of several sequences at a time gives what attention of one after the other gives."""

import pytest
import torch

from selfplay_pipeline.engines import sglang_attention
from selfplay_pipeline.engines.sglang_attention import Attention, make_pieces

HEADS, SIZE, SLOTS = 4, 8, 4000


def one_by_one(query, keys, values, table, requests, lengths, new):
    """Plain attention by its formula: each new token sees its sequence up to itself."""
    found, start = torch.empty_like(query), 0
    for request, length, count in zip(requests.tolist(), lengths, new, strict=True):
        slots = table[request, :length].long()
        group = query.shape[1] // keys.shape[1]
        key, value = (cache[slots].repeat_interleave(group, 1) for cache in (keys, values))
        for place in range(count):
            seen = length - count + place + 1
            scores = torch.einsum("hd,khd->hk", query[start + place], key[:seen]) / SIZE**0.5
            found[start + place] = torch.einsum("hk,khd->hd", scores.softmax(-1), value[:seen])
        start += count
    return found


def batch(lengths, new, key_heads=HEADS, seed=0):
    """Random queries, caches, and a table whose sequences lie anywhere in the cache and share nothing."""
    torch.manual_seed(seed)
    query = torch.randn(sum(new), HEADS, SIZE)
    keys, values = (torch.randn(SLOTS, key_heads, SIZE) for _ in range(2))
    table = torch.randint(SLOTS, (len(lengths) + 5, max(lengths) + 7), dtype=torch.int32)
    requests, places = torch.randperm(len(table))[: len(lengths)], torch.randperm(SLOTS).int()
    for request, length in zip(requests.tolist(), lengths, strict=True):
        table[request, :length], places = places[:length], places[length:]
    return query, keys, values, table, requests


def together(query, keys, values, table, requests, lengths, new):
    pieces = make_pieces(table, requests, lengths, new, query.dtype)
    output = torch.full_like(query, torch.nan)
    Attention().compute(pieces, query, output, keys, values, None)
    return output


CASES = {
    "one token of one sequence": ([7], [1]),
    "the first token": ([1], [1]),
    "a whole prompt": ([9], [9]),
    "one token of each": ([5, 90, 17, 30, 31, 6], [1] * 6),
    "prompts with and without a cached prefix": ([40, 12, 60, 33, 8], [40, 3, 1, 20, 8]),
    "many": ([10 + 7 * i % 45 for i in range(70)], [1 + 3 * i % 9 for i in range(70)]),
}


@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_each_new_token_sees_its_own_sequence_up_to_itself(case, key_heads):
    lengths, new = CASES[case]
    made = batch(lengths, new, key_heads)
    torch.testing.assert_close(together(*made, lengths, new), one_by_one(*made, lengths, new), atol=1e-5, rtol=1e-5)


def test_so_it_does_in_pieces_that_hold_few(monkeypatch):
    monkeypatch.setattr(sglang_attention, "PIECE_TOKENS", 100)
    lengths, new = CASES["many"]
    made = batch(lengths, new)
    assert len(make_pieces(made[3], made[4], lengths, new, torch.float32)) > 20
    torch.testing.assert_close(together(*made, lengths, new), one_by_one(*made, lengths, new), atol=1e-5, rtol=1e-5)


def test_a_number_that_is_none_stays_in_its_sequence():
    lengths, new = [30, 12, 20], [1, 1, 1]
    query, keys, values, table, requests = batch(lengths, new)
    sick = table[requests[1], :12].long()
    keys[sick], values[sick] = torch.nan, torch.nan
    table[requests[0], 30:], table[requests[2], 20:] = int(sick[0]), int(sick[0])
    found = together(query, keys, values, table, requests, lengths, new)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()


def test_a_prompt_whose_mask_would_be_large_is_left_to_sglang():
    table = torch.zeros(2, 9000, dtype=torch.int32)
    assert make_pieces(table, torch.tensor([0, 1]), [9000, 5], [9000, 1], torch.float32) is None
    assert make_pieces(table, torch.tensor([0, 1]), [9000, 5], [1, 1], torch.float32) is not None
