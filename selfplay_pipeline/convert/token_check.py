"""Check of an episode's tokens against the vocabulary of its checkpoint."""

from __future__ import annotations

from functools import lru_cache

from selfplay_pipeline.core.checkpoints import vocabulary_of
from selfplay_pipeline.generate.records import EpisodeRecord


def check_tokens(record: EpisodeRecord) -> None:
    """Raises ValueError, which names the field, if a token id is outside the vocabulary of its checkpoint.

    A checkpoint that is not on this machine is not checked.
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
