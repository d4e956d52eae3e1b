"""Bodies of requests to SGLang's native HTTP API, and pydantic models that validate its answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from selfplay_pipeline.core.terminal.harmless import harmless
from selfplay_pipeline.engines.types import (
    NEUTRAL,
    ROUNDING,
    Completion,
    EngineError,
    FinishReason,
    SamplingParams,
    finish_reason,
)

PROBE = SamplingParams(temperature=0.0, max_new_tokens=1, stop_token_ids=())
PROBE_IDS = (0, 1, 2)
"""Token ids of a prompt that is valid for every model."""

RELEASED: dict[str, Any] = {"tags": ["weights", "kv_cache"]}
"""GPU memory that a server releases and allocates again. CUDA graphs are not part of it: SGLang 0.5.12 keeps them
unless SGLANG_MEMORY_SAVER_CUDA_GRAPH is set.
"""

WITHOUT_WEIGHTS = "none: its memory is released"
"""Version of the weights of an attached server that has released its memory, as long as it has."""

UNGUIDED: dict[str, Any] = NEUTRAL | {
    "stop": None,
    "stop_regex": None,
    "min_new_tokens": 0,
    "n": 1,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "ignore_eos": False,
    "custom_params": None,
    "logit_bias": None,
    "sampling_seed": None,
}
"""Neutral values of all sampling settings except temperature and length. Requests send all of them, because a server
fills in missing ones from its `--preferred-sampling-params`.
"""


def request_of(prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """Returns the body of a `/generate` request."""
    sampling = UNGUIDED | params.request
    return {"input_ids": list(prompt_ids), "sampling_params": sampling, "return_logprob": True}


class _Read(BaseModel):
    """Strict base: a number must be a JSON number, never text, and unknown fields are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
LogProb = Annotated[float, Field(le=ROUNDING)]


class _FinishReason(_Read):
    type: Literal["stop", "length", "abort"]


class _End(_Read):
    finish_reason: _FinishReason | None
    """None if the answer was aborted."""


class _Ended(_Read):
    """Fields that are present even in an aborted answer."""

    meta_info: _End


class _Meta(_Read):
    output_token_logprobs: list[Annotated[list[Any], Field(min_length=2)]]
    """Log-prob, token id and text of each sampled token."""
    prompt_tokens: Count
    cached_tokens: Count = 0


class _Generated(_Read):
    """Answer of `/generate`."""

    output_ids: list[TokenId]
    meta_info: _Meta


class _LogProbs(_Read):
    """Log-probs alone, so that a validation error names the token."""

    log_prob: list[LogProb]


class ModelInfo(_Read):
    """Answer of `/model_info`."""

    model_path: Annotated[str, Field(min_length=1)]
    weight_version: str | None = None


class ServerInfo(_Read):
    """Answer of `/server_info`."""

    dp_size: Annotated[int, Field(ge=1, lt=2**31)] = 1
    """Number of copies of the model."""
    enable_memory_saver: bool = False
    """Whether the server can release its GPU memory."""


class Updated(_Read):
    """Answer of `/update_weights_from_disk`."""

    success: bool
    message: str = ""


Answer = TypeVar("Answer", bound=_Read)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in the body of an answer.

    Raises:
        ValueError: The body is not UTF-8, not JSON, nested too deeply, or not an object.
    """
    answer = from_json(body)
    if not isinstance(answer, dict):
        raise ValueError(f"JSON, but no object: {body[:40]!r}")
    return answer


def read(kind: type[Answer], answer: Any, url: str) -> Answer:
    """Returns an answer as a validated model.

    Args:
        url: Address that answered, for error messages.

    Raises:
        EngineError: A field is missing or invalid; the message names the field.
    """
    try:
        return kind.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        given = "" if first["type"] == "missing" else f", not {first['input']!r:.60}"
        raise EngineError(harmless(f"{url} answered with a bad {where}: {first['msg']}{given}")) from None


def completion_of(
    answer: dict[str, Any], params: SamplingParams, prompt_tokens: int, url: str, vocabulary: int | None = None
) -> Completion:
    """Returns the completion in an answer of `/generate`; an aborted answer gives a completion without tokens.

    Args:
        prompt_tokens: Length of the prompt that was sent; the server must have read all of it.
        url: Address that answered, for error messages.
        vocabulary: Size of the model's vocabulary; None if it is unknown.

    Raises:
        EngineError: The answer does not belong to this request or is impossible: too many tokens, token ids beyond the
            vocabulary, log-probs of other tokens, or log-probs that are above 0, infinite or NaN.
    """
    said = read(_Ended, answer, url).meta_info.finish_reason
    if said is None or said.type == "abort":
        return Completion([], [], FinishReason.ABORT, prompt_tokens=prompt_tokens, cached_tokens=0)
    generated = read(_Generated, answer, url)
    token_ids, meta = generated.output_ids, generated.meta_info
    pairs = meta.output_token_logprobs
    if [entry[1] for entry in pairs] != token_ids:
        raise EngineError(
            f"{url} answered with log-probs of other tokens ({len(pairs)}) than its output_ids ({len(token_ids)})"
        )
    logprobs = read(_LogProbs, {"log_prob": [entry[0] for entry in pairs]}, url).log_prob
    if vocabulary is not None and (beyond := [token for token in token_ids if token >= vocabulary]):
        raise EngineError(f"{url} answered with token {beyond[0]}, beyond the model's vocabulary of {vocabulary}")
    if len(token_ids) > params.max_new_tokens:
        raise EngineError(
            f"{url} answered with {len(token_ids)} tokens, more than max_new_tokens {params.max_new_tokens}"
        )
    if not token_ids:
        raise EngineError(f"{url} answered without a token (finish reason {said.type})")
    if meta.prompt_tokens != prompt_tokens or meta.cached_tokens > prompt_tokens:
        raise EngineError(
            f"{url} read {meta.prompt_tokens} prompt tokens ({meta.cached_tokens} cached); {prompt_tokens} were sent"
        )
    return Completion(
        token_ids=token_ids,
        logprobs=[min(logprob, 0.0) for logprob in logprobs],
        finish_reason=finish_reason(said.type, token_ids, params),
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens,
    )


def partial_of(
    answer: dict[str, Any], params: SamplingParams, prompt_tokens: int, url: str, vocabulary: int | None = None
) -> Completion:
    """Returns the completion in an answer as `completion_of` does, but keeps the tokens of an aborted answer.

    SGLang leaves the prompt's length out of the answer if the request was waiting when it was aborted. Such an answer
    gives no tokens.
    """
    done = completion_of(answer, params, prompt_tokens, url, vocabulary)
    sampled = answer.get("output_ids") and "prompt_tokens" in answer["meta_info"]
    if done.finish_reason is not FinishReason.ABORT or not sampled:
        return done
    ended = answer | {"meta_info": answer["meta_info"] | {"finish_reason": {"type": "length"}}}
    return replace(completion_of(ended, params, prompt_tokens, url, vocabulary), finish_reason=FinishReason.ABORT)
