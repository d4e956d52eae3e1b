"""Validity of token streams, for JSON records and parquet columns alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.engines.types import ROUNDING

MAX_COUNT = 2**31
"""Upper bound of token ids and of the numbers of groups and episodes, since rows hold ids in 32 bits."""
LEAST_LOGPROB = -104.0
"""Lower bound of log-probs. Engines sample from float32 probabilities, of which the smallest above 0 is 2 ** -149,
with the logarithm -103.3. A token with a lower log-prob has probability 0 and cannot be sampled."""


@dataclass(frozen=True)
class Lists:
    """Concatenated lists in Arrow's layout: list i is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def one(cls, values: list[Any], dtype: Any) -> Lists:
        """Returns a single list.

        Raises:
            OverflowError: A number is too large for `dtype`.
        """
        return cls(np.array(values, dtype), np.array([0, len(values)]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def find(self, bad: NDArray[np.bool_]) -> tuple[int, int] | None:
        """Returns the list number of the first bad value and its index in the list; None if no value is bad."""
        if not bad.any():
            return None
        at = int(bad.argmax())
        number = int(np.searchsorted(self.offsets, at, side="right")) - 1
        return number, at - int(self.offsets[number])


@dataclass(frozen=True)
class Streams:
    """Token fields of any number of `Trajectory` objects."""

    prompt_ids: Lists
    response_ids: Lists
    response_mask: Lists
    response_logprobs: Lists


@dataclass(frozen=True)
class Fault:
    """An impossible value: number of the stream, field, and description."""

    stream: int
    field: str
    what: str


def first_fault(streams: Streams, vocabulary: int | None = None) -> Fault | None:
    """Returns the first value that no model can have produced; None if there is none.

    A stream without a response is valid: its seat had no turn.

    Args:
        streams: The token streams.
        vocabulary: Size of the model's vocabulary; None if it is unknown.
    """
    response, mask, logprobs = streams.response_ids, streams.response_mask, streams.response_logprobs
    for field, lists in (("response_mask", mask), ("response_logprobs", logprobs)):
        differ = np.flatnonzero(lists.lengths != response.lengths)
        if len(differ):
            at = int(differ[0])
            return Fault(at, field, f"has {lists.lengths[at]} entries, response_ids has {response.lengths[at]}")
    for field, lists in (("prompt_ids", streams.prompt_ids), ("response_ids", response)):
        fault = _bad_id(field, lists, vocabulary)
        if fault:
            return fault
    if found := mask.find((mask.values != 0) & (mask.values != 1)):
        return Fault(found[0], "response_mask", f"{_entry(mask, found)}, expected 0 or 1")
    values = logprobs.values
    if found := logprobs.find(~((values <= ROUNDING) & (values >= LEAST_LOGPROB))):  # NaN is neither
        return Fault(found[0], "response_logprobs", f"{_entry(logprobs, found)}, expected {LEAST_LOGPROB:g} to 0")
    if found := logprobs.find((values != 0) & (mask.values == 0)):
        return Fault(found[0], "response_logprobs", f"{_entry(logprobs, found)}, expected 0 where response_mask is 0")
    spoke = np.flatnonzero(response.lengths)
    ends = mask.values[mask.offsets[spoke + 1] - 1]
    if not ends.all():
        return Fault(int(spoke[ends.argmin()]), "response_mask", "must end with 1, the player's last own token")
    empty = spoke[streams.prompt_ids.lengths[spoke] == 0]
    if len(empty):
        return Fault(int(empty[0]), "prompt_ids", "is empty, but there is a response")
    return None


def _bad_id(field: str, lists: Lists, vocabulary: int | None) -> Fault | None:
    limit = min(vocabulary or MAX_COUNT, MAX_COUNT)
    found = lists.find((lists.values < 0) | (lists.values >= limit))
    if found is None:
        return None
    whose = "the model's ids" if vocabulary else "ids"
    return Fault(found[0], field, f"{_entry(lists, found)}, but {whose} are 0 to {limit - 1}")


def _entry(lists: Lists, found: tuple[int, int]) -> str:
    number, at = found
    return f"entry {at} is {lists.values[lists.offsets[number] + at]}"
