"""The engine contract: prompt token ids in; sampled token ids, log-probs and a finish reason out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class FinishReason(StrEnum):
    """Reason why sampling stopped."""

    STOP = "stop"
    """A stop token was sampled. It is the last token id, even if the token limit was reached at the same time."""
    LENGTH = "length"
    """`max_new_tokens` tokens were sampled without a stop token."""
    ABORT = "abort"
    """The engine aborted the request."""


NEUTRAL = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Neutral values of all sampling settings except temperature, length and stops, by their names in SGLang and vLLM.

Log-probs do not include their effect, and a server may fill in settings that a request leaves out.
"""


ROUNDING = 1e-5
"""Largest log-prob that is accepted and counts as 0. SGLang takes the logarithm of a float32 softmax, whose largest
value may round to one or a few units in the last place (1.2e-7) above 1, whatever type the model computes in.
"""


@dataclass(frozen=True)
class SamplingParams:
    """Settings for one completion; temperature 0 is greedy."""

    temperature: float
    max_new_tokens: int
    stop_token_ids: tuple[int, ...]
    seed: int | None = None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> SamplingParams:
        """Returns the settings in the `sampling_params` of a request, by SGLang's names."""
        return cls(request["temperature"], request["max_new_tokens"], tuple(request.get("stop_token_ids", ())))

    @property
    def request(self) -> dict[str, Any]:
        """The settings as `sampling_params` of a request, by SGLang's names; without the seed if there is none."""
        named = {
            "temperature": self.temperature,
            "max_new_tokens": self.max_new_tokens,
            "stop_token_ids": list(self.stop_token_ids),
        }
        return named if self.seed is None else named | {"sampling_seed": self.seed}


@dataclass(frozen=True)
class Completion:
    """A sampled completion.

    Attributes:
        token_ids: Sampled token ids; with `STOP` the last one is the stop token.
        logprobs: Natural log-probs of `token_ids` under the temperature-scaled distribution.
        finish_reason: Reason why sampling stopped.
        prompt_tokens: Length of the prompt.
        cached_tokens: Number of prompt tokens that the engine had cached.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int


def finish_reason(said: str | None, token_ids: Sequence[int], params: SamplingParams) -> FinishReason:
    """Returns the reason why sampling stopped, based on the sampled tokens.

    Engines disagree about a completion that reaches the token limit: SGLang reports `length` even if the last token is
    a stop token, and verl's vLLM always reports `completed`.
    """
    if said in ("abort", "aborted"):
        return FinishReason.ABORT
    if token_ids and token_ids[-1] in params.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if said == "length" or len(token_ids) >= params.max_new_tokens else FinishReason.STOP


class EngineError(RuntimeError):
    """The engine could not answer, after all retries."""


class Engine(Protocol):
    """A sampler: prompts in, completions out. Players need no more."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        """Sample one completion.

        Args:
            session: `EPISODE-SEAT`, which names a seat of an episode; its requests share a prefix.

        Raises:
            EngineError: No attempt got an answer.
        """
        ...


class LoadingEngine(Engine, Protocol):
    """An engine whose weights can be replaced. Only the engine pool replaces them."""

    async def reload(self, checkpoint: Path) -> None:
        """Answer with the weights of another checkpoint from now on. No request may be under way."""
        ...

    async def release(self) -> None:
        """Release the GPU memory, weights included, until the next `reload`. No request may be under way."""
        ...

    async def close(self) -> None: ...
