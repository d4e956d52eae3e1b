"""Attention in plain torch, many sequences at a time, for SGLang on a CPU.

Sequences of similar length are computed together, as long as their keys fit into a core's cache. Indices and
masks are prepared once per batch, for all layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

PIECE_TOKENS = 4096
"""Largest number of padded keys in a piece of several sequences. In float32, with 4 heads of size 32, they take 2 MiB.
"""
LARGEST_MASK = 1 << 22
"""Largest number of elements in a mask; a longer prompt is left to SGLang's own attention, which needs no mask."""


@dataclass(frozen=True)
class Piece:
    """Sequences computed together, padded to the longest: their first key and their last query are repeated.

    Attributes:
        tokens: Row of each query in the batch, shape (sequences × queries,).
        slots: Row of each key in the cache, shape (sequences × keys,).
        mask: 0 where a query sees a key, else minus infinity, shape (sequences, 1, queries, keys).
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


def make_pieces(
    table: torch.Tensor, requests: torch.Tensor, lengths: Sequence[int], queries: Sequence[int], dtype: torch.dtype
) -> list[Piece] | None:
    """Returns the pieces of a batch; None if a mask would be too large.

    Args:
        table: Cache row of each token of each request, shape (requests, tokens).
        requests: Row of each sequence of the batch in `table`, shape (sequences,).
        lengths: Number of tokens of each sequence, new tokens included.
        queries: Number of new tokens of each sequence; the batch holds them sequence after sequence.
        dtype: Type of the mask.
    """
    first = [0]
    for count in queries:
        first.append(first[-1] + count)
    pieces = []
    for rows in _groups(lengths, queries):
        longest, most = lengths[rows[-1]], max(queries[row] for row in rows)
        if len(rows) * longest * most > LARGEST_MASK:
            return None
        begin, length, new = (
            torch.tensor([values[row] for row in rows])[:, None] for values in (first, lengths, queries)
        )
        place, key = torch.arange(most).minimum(new - 1), torch.arange(longest)
        slots = table[requests[rows], :longest]
        # A repeated key is of the same sequence, so that a NaN does not reach another sequence.
        slots = slots.where(key < length, slots[:, :1])
        unseen = key > (length - new + place)[:, None, :, None]
        mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -torch.inf)
        pieces.append(Piece((begin + place).flatten(), slots.flatten().long(), mask))
    return pieces


def _groups(lengths: Sequence[int], queries: Sequence[int]) -> Iterator[list[int]]:
    """Yields groups of sequences with similar numbers of queries and keys; the longest sequence is the last of its
    group.
    """
    group: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (queries[row].bit_length(), lengths[row])):
        alike = group and queries[row].bit_length() == queries[group[0]].bit_length()
        if group and not (alike and (len(group) + 1) * lengths[row] <= PIECE_TOKENS):
            yield group
            group = []
        group.append(row)
    if group:
        yield group


class Attention:
    """Computes the attention of pieces of a batch. Buffers are reused, because the first use of new memory is slow."""

    def __init__(self) -> None:
        self._gathered = [torch.empty(0), torch.empty(0)]

    def compute(
        self,
        pieces: Sequence[Piece],
        query: torch.Tensor,
        output: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float | None,
    ) -> None:
        """Fill `output` with the attention of the queries.

        Args:
            query: Queries, shape (new tokens, heads, head size), as for `output`.
            keys: Whole key cache, shape (slots, key heads, head size), as for `values`.
            scale: Factor of the products; 1 / √(head size) by default.
        """
        for piece in pieces:
            sequences, _, new, longest = piece.mask.shape
            key, value = (
                self._gather(number, cache, piece.slots).view(sequences, longest, *cache.shape[1:]).transpose(1, 2)
                for number, cache in enumerate((keys, values))
            )
            asked = query.index_select(0, piece.tokens).view(sequences, new, *query.shape[1:]).transpose(1, 2)
            found = scaled_dot_product_attention(
                asked, key, value, piece.mask, scale=scale, enable_gqa=query.shape[1] != keys.shape[1]
            )
            output.index_copy_(0, piece.tokens, found.transpose(1, 2).reshape(-1, *query.shape[1:]))

    def _gather(self, number: int, cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        rows = cache.view(cache.shape[0], -1)
        size = len(slots) * rows.shape[1]
        if self._gathered[number].numel() < size or self._gathered[number].dtype != cache.dtype:
            self._gathered[number] = cache.new_empty(size)
        return torch.index_select(rows, 0, slots, out=self._gathered[number][:size].view(len(slots), -1))
