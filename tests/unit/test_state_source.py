"""What every request for tokens says, and when a reply is complete."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
from functools import cache
from importlib.metadata import distribution
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from factories import BOARD
from scripted_server import answering, played
from slime_contract import SAMPLES, arguments, sample_of

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import FinishReason, SamplingParams
from selfplay_pipeline.generate.trajectory import ChatTokenizer
from selfplay_pipeline.slime import rollout
from selfplay_pipeline.train.verl.rollout_engine import VerlEngine, check_sampling

PREFERRED = {
    "top_p": 0.1, "top_k": 1, "min_p": 0.5, "frequency_penalty": 1.5, "presence_penalty": 1.5,
    "repetition_penalty": 1.9, "temperature": 0.01, "max_new_tokens": 7, "min_new_tokens": 5, "stop": ["a"],
    "stop_token_ids": [4], "stop_regex": "b", "n": 2, "regex": "c", "ebnf": "root ::= 'd'", "json_schema": "{}",
    "structural_tag": "e", "ignore_eos": True, "logit_bias": {"3": 9.0}, "custom_params": {"f": 1},
    "sampling_seed": 11,
}  # fmt: skip
"""A server's `--preferred-sampling-params`, each of them harmful."""
TEXT_ONLY = {"skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "stream_interval"}
"""Parameters that change the server's text alone, which is never read."""
PARAMS = SamplingParams(0.7, 12, (2,))


@cache
def sglang_params() -> type:
    """SGLang's own class, without the rest of SGLang."""
    path = distribution("sglang").locate_file("sglang/srt/sampling/sampling_params.py")
    spec = importlib.util.spec_from_file_location("sglang_sampling_params", str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SamplingParams


def with_preferred(sent: dict[str, Any]) -> Any:
    """What SGLang samples by: its `TokenizerManager` puts what was sent over what is preferred."""
    return vars(sglang_params()(**{**PREFERRED, **sent}))


@cache
def chat() -> ChatTokenizer:
    return ChatTokenizer.load("data/tiny_model")


def test_the_test_knows_all_parameters_of_the_server():
    assert set(inspect.signature(sglang_params()).parameters) - TEXT_ONLY == set(PREFERRED)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_servers_preferred_parameters_change_nothing(temperature):
    requests: list[Any] = []
    params = SamplingParams(temperature, 12, (2,))
    answering([[5, 2]], lambda engine: engine.generate([1], params), requests)
    plain = sglang_params()(temperature=temperature, max_new_tokens=12, stop_token_ids=[2])
    assert with_preferred(requests[0]["sampling_params"]) == vars(plain)


@pytest.mark.parametrize("seed", [None, 3])
def test_the_seed_is_the_requests_own(seed):
    requests: list[Any] = []
    answering([[5, 2]], lambda engine: engine.generate([1], SamplingParams(0.7, 12, (2,), seed)), requests)
    assert with_preferred(requests[0]["sampling_params"])["sampling_seed"] == seed


def test_neither_do_they_in_slimes_rollouts():
    kind, requests = next(iter(SAMPLES.values())), []
    slimes = {"temperature": 0.8, "top_p": 1.0, "top_k": -1, "max_new_tokens": 600, "stop": None}
    slimes |= {"stop_token_ids": None, "skip_special_tokens": False, "no_stop_trim": True}

    async def play(engine: SGLangEngine) -> None:
        host, port = engine.urls[0].removeprefix("http://").split(":")
        args = arguments(max_turns=1, sglang_router_ip=host, sglang_router_port=int(port))
        await rollout.generate(args, sample_of(kind, load_config("tiny", {}).game), slimes)
        await rollout.router_of(args, asyncio.get_running_loop()).close()

    answering([[5, 2]], play, requests)
    plain = {**slimes, "max_new_tokens": 64, "stop_token_ids": [chat().end_of_turn]}
    assert with_preferred(requests[0]["sampling_params"]) == vars(sglang_params()(**plain))


def verl_completion(token_ids: list[int], reason: str | None, sent: list[Any] | None = None) -> Any:
    async def generate(*, sampling_params: dict[str, Any], **_: Any) -> Any:
        if sent is not None:
            sent.append(sampling_params)
        steps = {"min_global_steps": 1, "max_global_steps": 1}
        answer = {"token_ids": token_ids, "log_probs": [-0.5] * len(token_ids), "stop_reason": reason}
        return SimpleNamespace(**answer, extra_fields=steps)

    engine = VerlEngine(SimpleNamespace(generate=generate), {"temperature": 1.0, "logprobs": True})
    return asyncio.run(engine.generate([1], PARAMS))


def test_verls_servers_are_told_all_that_shapes_the_distribution():
    sent: list[Any] = []
    verl_completion([5, 2], "stop", sent)
    assert sent[0].pop("logprobs") is True
    shapes = {"temperature", "top_p", "top_k", "min_p", *(key for key in PREFERRED if "penalty" in key)}
    plain = vars(sglang_params()(temperature=0.7, max_new_tokens=12, stop_token_ids=[2]))
    assert {key: with_preferred(sent[0])[key] for key in shapes} == {key: plain[key] for key in shapes}


@pytest.mark.parametrize(
    "given", [{"top_p": 0.9}, {"min_p": 0.1}, {"frequency_penalty": 0.5}, {"presence_penalty": 0.5}]
)
def test_what_verl_was_told_to_sample_by_is_refused_where_log_probs_leave_it_out(given):
    with pytest.raises(UserError, match=f"rollout.{next(iter(given))}"):
        check_sampling(given)
    check_sampling({"top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0})


FULL = [5] * 11
"""One token less than allowed."""


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ([5, 2], FinishReason.STOP),
        ([*FULL, 2], FinishReason.STOP),
        ([*FULL, 5], FinishReason.LENGTH),
    ],
    ids=["early", "exactly-full", "cut"],
)
@pytest.mark.parametrize("reason", ["sglang", "vllm"])
def test_a_reply_that_ends_with_its_last_token_allowed_is_complete(reply, expected, reason):
    assert answering([reply], lambda engine: engine.generate([1], PARAMS)).finish_reason is expected
    said = {"sglang": "length" if len(reply) == 12 else "stop", "vllm": "completed"}[reason]
    assert verl_completion(reply, said).finish_reason is expected


def test_a_turn_that_just_fits_is_no_error_and_is_not_ended_twice():
    texts = ["[message] hi", "[message] hi", "[message] hi again"] * 4
    replies = [[*chat().tokenizer.encode(text, add_special_tokens=False), chat().end_of_turn] for text in texts]
    record = played(chat(), replies, BOARD, limit=len(replies[0]))
    assert [turn.error_kind for turn in record.turns[:3]] == [None, None, "cut"]
    for side in record.trajectories:
        assert (chat().end_of_turn,) * 2 not in pairwise(side.prompt_ids + side.response_ids)
