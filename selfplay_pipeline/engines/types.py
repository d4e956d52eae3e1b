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
    """A stop token was sampled; it is the last of the token ids, and may be the last that was allowed."""
    LENGTH = "length"
    """`max_new_tokens` were sampled without one."""
    ABORT = "abort"
    """The engine gave up on the request."""


NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""What else shapes a distribution, as SGLang and vLLM name it, with the values that leave it as it is. Log-probs do not
include it, and what a request leaves out a server may fill in."""


ROUNDING = 1e-5
"""How far above 0 a log-prob may lie. SGLang takes the logarithm of a float32 softmax, whose largest value may round to
one or a few units in the last place (1.2e-7) above 1, whatever type the model computes in. Such a log-prob is 0."""


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


def finish_reason(said: str | None, token_ids: Sequence[int], params: SamplingParams) -> FinishReason:
    """Why sampling stopped, by what was sampled.

    Engines differ in what they say of a reply that ends with its last token allowed: SGLang says `length` even of a
    stop token, verl's vLLM says `completed` of both.
    """
    if said in ("abort", "aborted"):
        return FinishReason.ABORT
    if token_ids and token_ids[-1] in params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if said == "length" or len(token_ids) >= params.max_new_tokens else FinishReason.STOP


class EngineError(RuntimeError):
    """The engine could not answer, after all retries."""


class Engine(Protocol):
    """A sampler: prompts in, sampled tokens out. Players need no more."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        """Sample one completion. `session` names a seat of an episode, `EPISODE-SEAT`: its requests share a prefix.

        Raises:
            EngineError: no answer after all retries.
        """
        ...


class LoadingEngine(Engine, Protocol):
    """An engine whose weights can be replaced. Only the engine pool does so."""

    async def reload(self, checkpoint: Path) -> None:
        """Answer with another checkpoint's weights from now on. The caller has no request under way."""
        ...

    async def release(self) -> None:
        """Give a GPU's memory back, weights included, until the next `reload`. No request is under way."""
        ...

    async def close(self) -> None: ...
