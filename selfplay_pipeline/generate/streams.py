"""What a seat's token stream must be like, whether it comes from a line of JSON or from columns of parquet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfplay_pipeline.engines.types import ROUNDING

MAX_COUNT = 2**31
"""Upper bound of token ids and of the numbers of groups and episodes, since rows hold ids in 32 bits."""
LEAST_LOGPROB = -104.0
"""Lower bound of log-probs. Engines sample from probabilities in float32, of which the least above 0 is 2 ** -149: its
logarithm is -103.3. A token with a lower log-prob has probability 0, so that none can have sampled it."""


@dataclass(frozen=True)
class Lists:
    """Lists one behind the other, as Arrow keeps them: list i is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def one(cls, values: list[Any], dtype: Any) -> Lists:
        """A single list.

        Raises:
            OverflowError: a number is too large for `dtype`.
        """
        return cls(np.array(values, dtype), np.array([0, len(values)]))

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def find(self, bad: NDArray[np.bool_]) -> tuple[int, int] | None:
        """The list and the place within it of the first value that is bad."""
        if not bad.any():
            return None
        at = int(bad.argmax())
        number = int(np.searchsorted(self.offsets, at, side="right")) - 1
        return number, at - int(self.offsets[number])


@dataclass(frozen=True)
class Streams:
    """The fields of `Trajectory` that hold tokens, of any number of seats."""

    prompt_ids: Lists
    response_ids: Lists
    response_mask: Lists
    response_logprobs: Lists


@dataclass(frozen=True)
class Fault:
    """What is impossible, in which stream and field."""

    stream: int
    field: str
    what: str


def first_fault(streams: Streams, vocabulary: int | None = None) -> Fault | None:
    """The first thing that no model can have answered; None if there is none.

    Streams without a response are those of seats that never spoke.

    Args:
        vocabulary: how many token ids the model has, where that is known.
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
