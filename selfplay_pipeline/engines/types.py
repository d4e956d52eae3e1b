"""The engine contract: prompt token ids in; sampled token ids, log-probs and a finish reason out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol


class FinishReason(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    """A stop token was sampled; it is the last of the token ids."""
    LENGTH = "length"
    """`max_new_tokens` were sampled without one."""
    ABORT = "abort"
    """The engine gave up on the request."""


@dataclass(frozen=True)
class SamplingParams:
    """How to sample one completion. Temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int | None = None


@dataclass(frozen=True)
class Completion:
    """Sampled tokens.

    Attributes:
        token_ids: the sampled ids; with `STOP` the last one is the stop token.
        logprobs: natural log-probs of `token_ids` under the temperature-scaled distribution.
        finish_reason: why sampling stopped.
        prompt_tokens: length of the prompt.
        cached_tokens: how many of these the engine had cached.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int


class EngineError(RuntimeError):
    """The engine could not answer, after all retries."""


class Engine(Protocol):
    """What turns prompts into sampled tokens."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        """Sample one completion. `session` is one per player and play: its requests share a prefix.

        Raises:
            EngineError: no answer after all retries.
        """
        ...

    async def reload(self, checkpoint: Path) -> None:
        """Answer with another checkpoint's weights from now on. The caller has no request under way."""
        ...

    async def close(self) -> None: ...
