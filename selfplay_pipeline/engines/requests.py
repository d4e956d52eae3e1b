"""Request bodies for SGLang's native HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.engines.types import NEUTRAL, SamplingParams

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
