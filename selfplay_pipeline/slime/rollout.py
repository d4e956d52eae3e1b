"""slime's `--custom-generate-function-path`: one sample is one play of the policy with the partner.

The sample itself is the token stream: sampled tokens as the server returned them, and between them what the policy
heard, masked. Nothing is tokenised twice, and every prompt begins with the one before.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import MISSING, fields
from functools import lru_cache
from typing import Any

from selfplay_pipeline.engines.open import model_context_length
from selfplay_pipeline.engines.sglang_engine import SGLangEngine, completion_of
from selfplay_pipeline.engines.types import Completion, FinishReason
from selfplay_pipeline.games.types import Status
from selfplay_pipeline.generate.records import ChatMessage
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.slime.config import RolloutConfig
from selfplay_pipeline.slime.env import MatchingEnv, build_env, chat_of

PRODUCED = (
    "tokens", "response", "response_length", "reward", "loss_mask", "weight_versions", "rollout_log_probs",
    "rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts", "remove_sample", "status",
    "non_generation_time", "spec_info", "prefix_cache_info",
)  # fmt: skip
"""Fields of a sample that a rollout fills."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Play one game, and return the sample with its tokens, reward and status.

    Statuses, the last thing that is set:

    - COMPLETED: the game ended by its own rules, agreed or not; without agreement the reward is 0.
    - TRUNCATED: a limit outside the rules ended it: `max_turns`, response or context length. The reward is 0, since
      nothing was agreed, and the sample is trained on: such games are the policy's own doing.
    - ABORTED: the engine gave up the request, as slime tells it to at the end of a step with partial rollouts. A game
      cannot be taken up in its middle, because the partner's side is not stored: such a sample begins anew.
    - FAILED: the partner gave no answer. `remove_sample` keeps it out of the loss, `hooks.post_process_rewards` out of
      its group's mean.

    Raises:
        EngineError: the router does not answer, after all retries; without it no sample can be played.
        UserError: the configuration or the data is wrong, which no other sample would mend.
    """
    status = type(sample).Status
    start_afresh(sample)
    config = RolloutConfig.of(args)
    chat = chat_of(args.hf_checkpoint)
    env = build_env(sample, args)
    await env.start()
    sample.tokens = first_prompt(chat, sample.prompt)
    sample.loss_mask, sample.rollout_log_probs = [], []
    async with _router(args, sample) as router:
        ended = await _play(args, sample, sampling_params, evaluation, env=env, chat=chat, router=router, config=config)
    env.close()
    sample.status = getattr(status, ended)
    return sample


async def _play(
    args: Any,
    sample: Any,
    sampling_params: dict[str, Any],
    evaluation: bool,
    *,
    env: MatchingEnv,
    chat: ChatTokenizer,
    router: SGLangEngine,
    config: RolloutConfig,
) -> str:
    """Play until the end and return the name of the sample's status."""
    longest, context = sampling_params["max_new_tokens"], context_length(args, evaluation)
    heard: list[int] = []
    for _ in range(config.max_turns):
        room = min(longest - sample.response_length, context - len(sample.tokens)) - len(heard)
        if room <= 0:
            env.end(Status.CONTEXT_LENGTH)
            return "TRUNCATED"
        if _stopping():
            sample.remove_sample = True
            return "ABORTED"
        append(sample, args, chat, heard)
        limit = min(config.selfplay.max_new_tokens, room)
        answer = await router.ask(_request(args, sample, sampling_params, limit, chat.end_of_turn), sample.session_id)
        meta = answer["meta_info"]
        if (meta["finish_reason"] or {}).get("type", "abort") == FinishReason.ABORT:
            sample.remove_sample = True
            return "ABORTED"
        completion = completion_of(answer)
        append(sample, args, chat, completion.token_ids, logprobs=completion.logprobs, meta=meta)
        cut = completion.finish_reason is FinishReason.LENGTH
        if cut and limit == room:
            env.end(Status.CONTEXT_LENGTH)
            return "TRUNCATED"
        observation, over, _ = await env.answer(chat.decode_reply(completion.token_ids), cut=cut)
        if over:
            return "COMPLETED" if env.failure is None else "FAILED"
        heard = what_is_heard(chat, observation, completion)
    env.end(Status.TURN_LIMIT)
    return "TRUNCATED"


def _stopping() -> bool:
    """Whether slime has all the samples of its step and waits for the rest to end.

    It aborts requests at the engine, where a dialogue has none while its partner thinks.
    """
    loop = sys.modules.get("slime.rollout.sglang_rollout")
    states = getattr(getattr(loop, "GenerateState", None), "_instances", {})
    return any(getattr(state, "aborted", False) for state in states.values())


def first_prompt(chat: ChatTokenizer, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    """Token ids of what the policy reads first: messages, or their text where slime has rendered them already."""
    if isinstance(prompt, str):
        return list(chat.tokenizer.encode(prompt, add_special_tokens=False))
    return chat.first_prompt([ChatMessage.model_validate(message) for message in prompt])


def what_is_heard(chat: ChatTokenizer, observation: str, said: Completion) -> list[int]:
    """Token ids between two of the policy's turns."""
    return chat.next_prompt(chat.neutralise(observation), said.token_ids, said.finish_reason)


def start_afresh(sample: Any) -> None:
    """Empty what a rollout fills, since aborted samples come again; and name the sample for the router."""
    for field in fields(sample):
        if field.name in PRODUCED:
            value = field.default_factory() if field.default_factory is not MISSING else field.default
            setattr(sample, field.name, value)
    sample.session_id = getattr(sample, "session_id", None) or str(uuid.uuid4())


def append(
    sample: Any,
    args: Any,
    chat: ChatTokenizer,
    tokens: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    meta: dict[str, Any] | None = None,
) -> None:
    """Add tokens to the response: sampled ones with their log-probs, heard ones without.

    `append_response_tokens` is slime's own, of versions that have it; it also reads the server's weight version,
    cache figures and whatever else training replays.
    """
    if not tokens:
        return
    own = logprobs is not None
    text = str(chat.tokenizer.decode(list(tokens), skip_special_tokens=False))
    if hasattr(sample, "append_response_tokens"):
        sample.append_response_tokens(
            args, tokens=tokens, log_probs=logprobs, trainable=own, meta_info=meta, text=text, update_terminal_info=own
        )
        return
    sample.tokens = [*sample.tokens, *tokens]
    sample.response += text
    sample.response_length += len(tokens)
    sample.loss_mask = [*(sample.loss_mask or []), *[int(own)] * len(tokens)]
    sample.rollout_log_probs = [*(sample.rollout_log_probs or []), *(logprobs or [0.0] * len(tokens))]
    if meta and "weight_version" in meta:
        sample.weight_versions.append(meta["weight_version"])


def context_length(args: Any, evaluation: bool) -> int:
    """Longest sequence in tokens: slime's limit for the kind of rollout, at most what the model was made for."""
    limit = getattr(args, "eval_max_context_len" if evaluation else "rollout_max_context_len", None)
    return _context_of(args.hf_checkpoint, limit)


_context_of = lru_cache(maxsize=4)(model_context_length)


@asynccontextmanager
async def _router(args: Any, sample: Any) -> AsyncIterator[SGLangEngine]:
    routed = getattr(args, "router_policy", None) == "consistent_hashing"
    # Each request of a play begins with the one before, which the server that answered that one has cached.
    headers = {"X-SMG-Routing-Key": sample.session_id} if routed else {}
    url = f"http://{args.sglang_router_ip}:{args.sglang_router_port}"
    engine = SGLangEngine([url], attempts=ATTEMPTS, headers=headers)
    try:
        yield engine
    finally:
        await engine.close()


ATTEMPTS = 12
"""How often a turn is requested: for about a minute, in which slime's health monitor restarts a dead server."""


def _request(
    args: Any, sample: Any, sampling_params: dict[str, Any], max_new_tokens: int, end_of_turn: int
) -> dict[str, Any]:
    stops = sampling_params.get("stop_token_ids") or []
    sampling = {
        **sampling_params,
        "max_new_tokens": max_new_tokens,
        "stop_token_ids": [*stops, *([] if end_of_turn in stops else [end_of_turn])],
    }
    request = {"input_ids": sample.tokens, "sampling_params": sampling, "return_logprob": True}
    if getattr(args, "use_rollout_routing_replay", False):
        request["return_routed_experts"] = True
    return request
