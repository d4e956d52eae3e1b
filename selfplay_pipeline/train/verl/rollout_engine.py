"""verl's rollout servers as an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.types import NEUTRAL, Completion, EngineError, SamplingParams, finish_reason


class VerlEngine:
    """Engine of one player over verl's `LLMServerClient`.

    All requests of a player go to one server, which caches its prefix.

    Attributes:
        versions: Weight versions (training steps) of the answers so far.
    """

    def __init__(self, client: Any, sampling_params: dict[str, Any]) -> None:
        """Create the engine.

        Args:
            client: verl's client of its servers.
            sampling_params: The parameters of verl's agent-loop worker; its temperature and limits are ignored, because
                the seat sets them.
        """
        self._client = client
        self._sampling_params = sampling_params
        self.versions: list[int] = []

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        # A new dict for each request: verl's servers take keys out of it.
        sampling = NEUTRAL | self._sampling_params | params.request | {"logprobs": True}
        try:
            answer = await self._client.generate(
                request_id=session, prompt_ids=list(prompt_ids), sampling_params=sampling
            )
        except Exception as error:
            # Ray wraps server errors in its own types.
            raise EngineError(f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}") from error
        token_ids = list(answer.token_ids)
        if not token_ids or answer.log_probs is None or len(answer.log_probs) != len(token_ids):
            raise EngineError(
                f"the server answered {len(token_ids)} tokens with "
                f"{'no' if answer.log_probs is None else len(answer.log_probs)} log-probs (stop: {answer.stop_reason})"
            )
        extra = answer.extra_fields
        self.versions += [int(extra["min_global_steps"]), int(extra["max_global_steps"])]
        return Completion(
            token_ids=token_ids,
            logprobs=[float(value) for value in answer.log_probs],
            finish_reason=finish_reason(answer.stop_reason, token_ids, params),
            prompt_tokens=len(prompt_ids),
            cached_tokens=int(extra.get("num_cached_tokens") or 0),
        )


def check_sampling(params: dict[str, Any]) -> None:
    """Raises UserError unless servers report log-probs of the distribution that they sample from.

    Raises:
        UserError: A parameter is set that log-probs do not include.
    """
    for key, neutral in NEUTRAL.items():
        if params.get(key, neutral) != neutral:
            raise UserError(f"rollout.{key}={params[key]}: log-probs do not include it; sample with {key}={neutral}")
