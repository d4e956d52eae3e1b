"""What a server of SGLang's native HTTP API is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.engines.types import NEUTRAL, SamplingParams

PROBE = SamplingParams(temperature=0.0, max_new_tokens=1, stop_token_ids=())
PROBE_IDS = (0, 1, 2)
"""A prompt that every model can read."""

RELEASED: dict[str, Any] = {"tags": ["weights", "kv_cache"]}
"""What a server gives back of a GPU's memory, and takes again. Its CUDA graphs stay: SGLang 0.5.12 keeps them, unless
SGLANG_MEMORY_SAVER_CUDA_GRAPH is set."""

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
"""All that SGLang could do to a distribution or to where sampling stops, left undone: what a request does not say, the
server takes from its `--preferred-sampling-params`."""


def request_of(prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    """A request of `/generate`."""
    sampling = UNGUIDED | {
        "temperature": params.temperature,
        "max_new_tokens": params.max_new_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "sampling_seed": params.seed,
    }
    return {"input_ids": list(prompt_ids), "sampling_params": sampling, "return_logprob": True}
