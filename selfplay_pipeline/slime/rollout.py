"""slime's `--custom-generate-function-path`: one sample is one episode of the policy with the partner.

The sample is the token stream: sampled tokens as the server returned them, and masked observation tokens between them.
Nothing is tokenised twice, and every prompt begins with the previous one.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Coroutine, Sequence
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.model_sizes import model_context_length
from selfplay_pipeline.engines.sglang_api import UNGUIDED, completion_of
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import Completion, FinishReason, SamplingParams
from selfplay_pipeline.games.base import Status
from selfplay_pipeline.generate.records import ChatMessage
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.slime.env import EpisodeEnv, build_env, chat_of

T = TypeVar("T")
PRODUCED = (
    "tokens", "response", "response_length", "reward", "loss_mask", "weight_versions", "rollout_log_probs",
    "rollout_top_p_token_ids", "rollout_top_p_token_offsets", "rollout_routed_experts", "remove_sample", "status",
    "non_generation_time", "spec_info", "prefix_cache_info",
)  # fmt: skip
"""Fields of a sample that a rollout fills."""


async def generate(args: Any, sample: Any, sampling_params: dict[str, Any], evaluation: bool = False) -> Any:
    """Play one episode; returns the sample with its tokens, reward and status.

    The status is set last:

    - COMPLETED: the game ended by its own rules, with or without agreement; without agreement the reward is 0.
    - TRUNCATED: a limit outside the rules ended the game: `max_turns`, response or context length. The reward is 0,
      since nothing was agreed, and the sample is trained on, because the policy itself caused such an end.
    - ABORTED: stopped by the engine, or by slime because it has enough samples for its step. With
      --partial-rollout such a sample is generated again, else slime drops it. A game cannot resume in its middle,
      because the partner's side is not stored: it begins anew. So with --partial-rollout, batches are biased towards
      short episodes, because only these end in time.
    - FAILED: the partner gave no answer. `remove_sample` excludes the sample from the loss, and
      `hooks.post_process_rewards` excludes it from its group's mean.

    Raises:
        EngineError: The router does not answer after all retries; without it no sample can be played.
        UserError: The configuration or the data is wrong, so that every sample would fail, for example a prompt that
            leaves no room for a single token.
    """
    status = type(sample).Status
    reset_sample(sample)
    env = build_env(sample, args)
    await env.start()
    router = router_of(args, asyncio.get_running_loop())
    ended = await EpisodeRollout(
        args, sample, dict(sampling_params), context_length(args, evaluation), env, router
    ).play()
    env.close()
    sample.status = getattr(status, ended)
    return sample


@dataclass
class EpisodeRollout:
    """A sample's episode in progress.

    Attributes:
        sampling: slime's parameters; `max_new_tokens` is for the whole response.
        context: Longest sequence in tokens.
    """

    args: Any
    sample: Any
    sampling: dict[str, Any]
    context: int
    env: EpisodeEnv
    router: SGLangEngine

    def __post_init__(self) -> None:
        self.chat = chat_of(self.args, self.env.config.selfplay.thinking)
        self.sample.tokens = first_prompt(self.chat, self.sample.prompt)
        self.sample.loss_mask, self.sample.rollout_log_probs = [], []

    async def play(self) -> str:
        """Play until the end; returns the name of the sample's status."""
        heard: list[int] = []
        for _ in range(self.env.config.max_turns):
            room = self.room() - len(heard)
            if room <= 0 and not self.sample.response_length:
                tokens = len(self.sample.tokens)
                raise UserError(
                    f"episode {self.sample.metadata.get('state_id')}: its prompt of {tokens} tokens leaves room for "
                    f"none in a context of {self.context}, a response of {self.sampling['max_new_tokens']}; "
                    "raise --rollout-max-context-len or --rollout-max-response-len (--eval-max-… for evaluations)"
                )
            if room <= 0:
                return self.truncated(Status.CONTEXT_LENGTH)
            if _stopping():
                return self.aborted()
            self.append(heard)
            limit = min(self.env.config.selfplay.max_new_tokens, room)
            turn = self.turn(limit)
            answer = await self.router.ask(self.request(turn), headers=self.headers(), longest=LONGEST_ANSWER)
            said = completion_of(answer, turn, len(self.sample.tokens), self.router.urls[0])
            if said.finish_reason is FinishReason.ABORT:
                return self.aborted()
            self.append(said.token_ids, logprobs=said.logprobs, meta=answer["meta_info"])
            cut = said.finish_reason is FinishReason.LENGTH
            if cut and limit == room:
                return self.truncated(Status.CONTEXT_LENGTH)
            text, whole = self.chat.said(self.chat.decode_reply(said.token_ids))
            answering = self.env.answer(text, cut=cut or not whole)
            heard_of = await _unless_stopping(answering)
            if heard_of is None:
                return self.aborted()
            observation, over, _ = heard_of
            if over:
                return "COMPLETED" if self.env.failure is None else "FAILED"
            heard = observation_ids(self.chat, observation, said)
        return self.truncated(Status.TURN_LIMIT)

    def room(self) -> int:
        """Returns the number of tokens that can still be added to the sample."""
        in_response = self.sampling["max_new_tokens"] - self.sample.response_length
        return int(min(in_response, self.context - len(self.sample.tokens)))

    def truncated(self, status: Status) -> str:
        self.env.end(status)
        return "TRUNCATED"

    def aborted(self) -> str:
        self.sample.remove_sample = True
        return "ABORTED"

    def headers(self) -> dict[str, str]:
        """Returns headers that make the router send all requests of a sample to one server, which caches its prefix."""
        routed = getattr(self.args, "router_policy", None) == "consistent_hashing"
        return {"X-SMG-Routing-Key": self.sample.session_id} if routed else {}

    def turn(self, max_new_tokens: int) -> SamplingParams:
        """Returns the sampling parameters of one turn."""
        stops = self.sampling.get("stop_token_ids") or []
        stop_token_ids = tuple(sorted({*stops, *self.chat.stops}))
        return SamplingParams(self.sampling["temperature"], max_new_tokens, stop_token_ids)

    def request(self, turn: SamplingParams) -> dict[str, Any]:
        """Returns the request to the router: continue the sample by one turn."""
        sampling = UNGUIDED | self.sampling | turn.request
        request = {"input_ids": self.sample.tokens, "sampling_params": sampling, "return_logprob": True}
        if getattr(self.args, "use_rollout_routing_replay", False):
            request["return_routed_experts"] = True
        return request

    def append(
        self, tokens: Sequence[int], *, logprobs: Sequence[float] | None = None, meta: dict[str, Any] | None = None
    ) -> None:
        """Add tokens to the response: sampled ones with their log-probs, observed ones without.

        `append_response_tokens` is slime's own, in versions that have it; it also stores the server's weight version,
        cache figures and other data that slime's training uses.
        """
        if not tokens:
            return
        sample, own = self.sample, logprobs is not None
        text = str(self.chat.tokenizer.decode(list(tokens), skip_special_tokens=False))
        if hasattr(sample, "append_response_tokens"):
            given = {"meta_info": meta, "text": text, "update_terminal_info": own}
            sample.append_response_tokens(self.args, tokens=tokens, log_probs=logprobs, trainable=own, **given)
            return
        sample.tokens = [*sample.tokens, *tokens]
        sample.response += text
        sample.response_length += len(tokens)
        sample.loss_mask = [*sample.loss_mask, *[int(own)] * len(tokens)]
        sample.rollout_log_probs = [*sample.rollout_log_probs, *(logprobs or [0.0] * len(tokens))]
        if meta and "weight_version" in meta:
            sample.weight_versions.append(meta["weight_version"])


async def _unless_stopping(answering: Coroutine[Any, Any, T]) -> T | None:
    """Returns the partner's answer; None if slime ends the step first."""
    task = asyncio.ensure_future(answering)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=LOOK)
            if not task.done() and _stopping():
                return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _stopping() -> bool:
    """Whether slime has enough samples for its step and waits for the running ones to stop.

    slime aborts requests at the engine, but an episode has no request there while its partner thinks.
    """
    loop = sys.modules.get("slime.rollout.sglang_rollout")
    states = getattr(getattr(loop, "GenerateState", None), "_instances", {})
    return any(getattr(state, "aborted", False) for state in states.values())


def first_prompt(chat: ChatTokenizer, prompt: str | Sequence[dict[str, str]]) -> list[int]:
    """Returns the token ids of the first prompt, from messages or from the text that slime has rendered.

    Raises:
        UserError: slime rendered the prompt with another setting of the switch for thoughts than ours.
    """
    if isinstance(prompt, str):
        if not prompt.endswith(chat.header):
            raise UserError(
                f"slime's prompt ends with {prompt[-40:]!r}, not with {chat.header!r}: "
                "give --apply-chat-template-kwargs '{\"enable_thinking\": …}' the value of selfplay.thinking "
                "(some templates call the switch `thinking`)"
            )
        return list(chat.tokenizer.encode(prompt, add_special_tokens=False))
    return chat.rendered_prompt([ChatMessage.model_validate(message) for message in prompt])


def observation_ids(chat: ChatTokenizer, observation: str, said: Completion) -> list[int]:
    """Returns the token ids to insert between two of the policy's turns."""
    return chat.next_prompt(chat.neutralise(observation), said.token_ids)


def reset_sample(sample: Any) -> None:
    """Reset the fields that a rollout fills, since slime submits aborted samples again; give the sample an id for the
    router.
    """
    for field in fields(sample):
        if field.name in PRODUCED:
            value = field.default_factory() if field.default_factory is not MISSING else field.default
            setattr(sample, field.name, value)
    sample.session_id = getattr(sample, "session_id", None) or str(uuid.uuid4())


def context_length(args: Any, evaluation: bool) -> int:
    """Returns the longest sequence in tokens: slime's limit for this kind of rollout, at most the model's own."""
    limit = getattr(args, "eval_max_context_len" if evaluation else "rollout_max_context_len", None)
    return _context_of(args.hf_checkpoint, limit)


_context_of = lru_cache(maxsize=4)(model_context_length)


def router_of(args: Any, loop: asyncio.AbstractEventLoop) -> SGLangEngine:
    """Returns a client of slime's router."""
    return _router(f"http://{args.sglang_router_ip}:{args.sglang_router_port}", loop)


@lru_cache(maxsize=8)
def _router(url: str, loop: asyncio.AbstractEventLoop) -> SGLangEngine:
    """Returns one client for all samples of a process in one event loop, so that they share its connections."""
    return SGLangEngine([url], attempts=ATTEMPTS)


ATTEMPTS = 12
"""Number of attempts per turn, over about a minute, during which the router may find another server.

With --use-fault-tolerance, slime restarts a dead server at the next update of weights at the earliest.
"""
LONGEST_ANSWER = 1 << 30
"""Size of the largest answer in bytes.

With `--use-rollout-routing-replay`, an answer contains every token's experts in every layer.
"""
LOOK = 1.0
"""Seconds between checks whether slime wants the step to end, while the partner thinks."""
