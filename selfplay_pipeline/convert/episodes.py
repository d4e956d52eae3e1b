"""Checks that an episode's tokens can be those of its checkpoint; its rules were checked when it was read."""

from __future__ import annotations

from functools import lru_cache

from selfplay_pipeline.core.checkpoints import vocabulary_of
from selfplay_pipeline.generate.records import EpisodeRecord


def check_tokens(record: EpisodeRecord) -> None:
    """Check that the tokens are in the vocabulary of the checkpoint that sampled them, if that is on this machine.

    Raises:
        ValueError: a token is outside the vocabulary; the message names the field.
    """
    for number, seat in enumerate(record.trajectories):
        checkpoint = record.sampler_of(seat).checkpoint
        vocabulary = _vocabulary(checkpoint)
        if vocabulary and max(map(max, filter(None, (seat.prompt_ids, seat.response_ids))), default=0) >= vocabulary:
            fault = seat.fault(vocabulary)
            assert fault is not None
            raise ValueError(f"field 'trajectories.{number}.{fault.field}': {fault.what} ({checkpoint})")


@lru_cache(maxsize=64)
def _vocabulary(checkpoint: str) -> int | None:
    return vocabulary_of(checkpoint)
