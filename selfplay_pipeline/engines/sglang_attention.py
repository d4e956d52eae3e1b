"""Attention in plain torch, many sequences at a time, for SGLang on a CPU.

SGLang 0.5.12's own (`TorchNativeAttnBackend`) takes the sequences of a batch one by one in every layer, and computes
what a prefix's queries would give again, to throw it away. Here a few sequences of about one length are computed
together, as many as a core's cache holds the keys of, and what is the same in all layers is made once for a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

PIECE_TOKENS = 4096
"""Padded keys of sequences that are computed together. In float32, with 4 heads of 32, they take 2 MiB."""
LARGEST_MASK = 1 << 22
"""Numbers of a mask; a longer prompt is left to SGLang's own attention, which needs none."""


@dataclass(frozen=True)
class Piece:
    """Sequences that are computed together, padded to the longest: their last key and their last query are repeated.

    Attributes:
        tokens: row of each query in the batch: (sequences × queries,).
        slots: row of each key in the cache: (sequences × keys,).
        mask: 0 where a query sees a key, else minus infinity: (sequences, 1, queries, keys).
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    mask: torch.Tensor


def make_pieces(
    table: torch.Tensor, requests: torch.Tensor, lengths: Sequence[int], queries: Sequence[int], dtype: torch.dtype
) -> list[Piece] | None:
    """Cut a batch into pieces; None if a mask would be too large.

    Args:
        table: row in the cache of each token of each request: (requests, tokens).
        requests: the batch's rows in the table: (sequences,).
        lengths: tokens of each sequence, with those that are new.
        queries: how many of them are new; in the batch, those of one sequence come after those of the last.
        dtype: of the mask.
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
        # What a repeated key holds is of the same sequence: one that is no number must not reach another sequence.
        slots = slots.where(key < length, slots[:, :1])
        unseen = key > (length - new + place)[:, None, :, None]
        mask = torch.zeros(unseen.shape, dtype=dtype).masked_fill_(unseen, -torch.inf)
        pieces.append(Piece((begin + place).flatten(), slots.flatten().long(), mask))
    return pieces


def _groups(lengths: Sequence[int], queries: Sequence[int]) -> Iterator[list[int]]:
    """Sequences of about as many queries and keys, the longest last."""
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
    """Computes pieces; its memory for gathered keys and values stays, since new memory is slow at its first use."""

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
        """Fill `output`.

        Args:
            query: (new tokens, heads, head size), and so is `output`.
            keys: the whole cache: (slots, key heads, head size), and so are `values`.
            scale: of the products; by default one over the square root of the head size.
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


def register() -> None:
    """Take the place of SGLang's own `torch_native`, by which name SGLang knows elsewhere that Triton is not used."""
    from sglang.srt.layers.attention.attention_registry import register_attention_backend

    @register_attention_backend("torch_native")  # type: ignore[untyped-decorator]
    def create(runner: Any) -> Any:
        return _backend(runner)


def _backend(runner: Any) -> Any:
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

    class Backend(TorchNativeAttnBackend):  # type: ignore[misc]  # SGLang has no types
        """SGLang's own wherever this is not the plain case: causal, one type, one size of heads."""

        def __init__(self, runner: Any) -> None:
            super().__init__(runner)
            self._dtype = runner.dtype
            self._attention = Attention()
            self._pieces: list[Piece] | None = None

        def init_forward_metadata(self, forward_batch: Any) -> None:
            lengths = forward_batch.seq_lens.tolist()
            new = [1] * len(lengths)
            if not forward_batch.forward_mode.is_decode_or_idle():
                new = forward_batch.extend_seq_lens.tolist()
            table = forward_batch.req_to_token_pool.req_to_token
            self._pieces = make_pieces(table, forward_batch.req_pool_indices, lengths, new, self._dtype)

        def _run_sdpa_forward_decode(
            self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
        ) -> Any:
            if not self._plain(query, keys, values):
                return super()._run_sdpa_forward_decode(query, output, keys, values, *rest, **how)
            self._attention.compute(self._pieces or (), query, output, keys, values, how["scaling"])
            return output

        def _run_sdpa_forward_extend(
            self, query: Any, output: Any, keys: Any, values: Any, *rest: Any, **how: Any
        ) -> Any:
            if not (how["causal"] and self._plain(query, keys, values)):
                return super()._run_sdpa_forward_extend(query, output, keys, values, *rest, **how)
            self._attention.compute(self._pieces or (), query, output, keys, values, how["scaling"])
            return output

        def _plain(self, query: Any, keys: Any, values: Any) -> bool:
            one_type = self._dtype == query.dtype == keys.dtype == values.dtype
            return one_type and keys.shape == values.shape and self._pieces is not None

    return Backend(runner)
