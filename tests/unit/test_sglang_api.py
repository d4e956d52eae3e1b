"""What a server answers is a completion that can be written down, or an error of one line that names the server."""

import asyncio
import json
import math
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from quick import examples
from scripted_server import answer_to, serving

from selfplay_pipeline.engines.client import same_model
from selfplay_pipeline.engines.http import Http
from selfplay_pipeline.engines.sglang_api import ROUNDING, completion_of, read_object
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason, SamplingParams

PROMPT, VOCABULARY = [1, 2, 3], 50
PARAMS = SamplingParams(1.0, 4, (9,))
GOOD = answer_to({"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4}}, [5, 6, 9])


def with_meta(**changes: Any) -> dict[str, Any]:
    return GOOD | {"meta_info": GOOD["meta_info"] | changes}


def with_first(logprob: Any) -> dict[str, Any]:
    first, *rest = GOOD["meta_info"]["output_token_logprobs"]
    return with_meta(output_token_logprobs=[[logprob, *first[1:]], *rest])


def with_ids(*ids: Any) -> dict[str, Any]:
    return with_meta(output_token_logprobs=[[-0.5, token, None] for token in ids]) | {"output_ids": list(ids)}


def ask(**response: Any) -> Completion:
    """One completion of the real engine, from a server that answers so."""

    async def generate(request: web.Request) -> web.Response:
        return web.Response(**({"content_type": "application/json"} | response))

    async def act(url: str) -> Completion:
        async with SGLangEngine([url], attempts=1, vocabulary=VOCABULARY) as engine:
            return await engine.generate(PROMPT, PARAMS)

    return serving({"/generate": generate}, act)


def test_a_good_answer_is_a_completion():
    done = ask(text=json.dumps(GOOD))
    assert done == Completion([5, 6, 9], [-0.5] * 3, FinishReason.STOP, prompt_tokens=3, cached_tokens=0)


@pytest.mark.parametrize("answer", [with_ids(0, 49), with_ids(1, 2, 3, 4), with_meta(cached_tokens=3), with_first(0.0)])
def test_what_lies_at_a_limit_is_a_completion(answer):
    assert completion_of(answer, PARAMS, len(PROMPT), "u", VOCABULARY).token_ids == answer["output_ids"]


IMPOSSIBLE = {
    "null log-prob, as SGLang writes NaN": (with_first(None), "log_prob.0: Input should be a valid number, not None"),
    "NaN": (with_first(math.nan), "log_prob.0: Input should be a finite number"),
    "minus infinity": (with_first(-math.inf), "log_prob.0: Input should be a finite number"),
    "positive log-prob": (with_first(0.5), "log_prob.0: Input should be less than or equal to"),
    "log-prob that is a word": (with_first("-0.5"), "log_prob.0: Input should be a valid number"),
    "log-prob that is a truth value": (with_first(False), "log_prob.0: Input should be a valid number"),
    "fraction of a token": (with_ids(5.0, 6), "output_ids.0: Input should be a valid integer"),
    "negative token": (with_ids(-1, 6), "output_ids.0: Input should be greater than or equal to 0"),
    "token beyond the vocabulary": (with_ids(5, 50), "token 50, beyond the model's vocabulary of 50"),
    "token of 2³¹": (with_ids(2**31), "output_ids.0: Input should be less than 2147483648"),
    "no token": (with_ids(), "without a token"),
    "too many tokens": (with_ids(1, 2, 3, 4, 5), "5 tokens, more than max_new_tokens 4"),
    "log-probs of other tokens": (GOOD | {"output_ids": [5, 7, 9]}, "log-probs of other tokens"),
    "fewer log-probs": (GOOD | {"output_ids": [5, 6, 9, 9]}, "log-probs of other tokens"),
    "no log-probs": (with_meta(output_token_logprobs=None), "meta_info.output_token_logprobs"),
    "log-probs without tokens": (with_meta(output_token_logprobs=[[-0.5]]), "output_token_logprobs.0"),
    "unknown finish reason": (with_meta(finish_reason={"type": "tired"}), "meta_info.finish_reason.type"),
    "finish reason of another kind": (with_meta(finish_reason="stop"), "meta_info.finish_reason"),
    "a cut prompt": (with_meta(prompt_tokens=2), "read 2 prompt tokens (0 cached); 3 were sent"),
    "a longer prompt": (with_meta(prompt_tokens=4), "read 4 prompt tokens (0 cached); 3 were sent"),
    "more cached than sent": (with_meta(cached_tokens=4), "read 3 prompt tokens (4 cached); 3 were sent"),
    "no meta_info": ({"output_ids": [1]}, "bad meta_info: Field required"),
    "meta_info that is a list": (GOOD | {"meta_info": []}, "bad meta_info"),
    "no output_ids": ({"meta_info": GOOD["meta_info"]}, "bad output_ids: Field required"),
}


@pytest.mark.parametrize(("answer", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_an_answer_that_cannot_be_is_refused_with_what_is_wrong(answer, words):
    with pytest.raises(EngineError) as caught:
        completion_of(json.loads(json.dumps(answer)), PARAMS, len(PROMPT), "http://there/generate", VOCABULARY)
    assert words in str(caught.value)
    assert str(caught.value).startswith("http://there/generate ")
    assert "\n" not in str(caught.value)


PAGES = {
    "a web page": ({"text": "<html>hello</html>", "content_type": "text/html"}, "text/html, not a JSON object"),
    "half an object": ({"text": '{"output_ids": ['}, "not a JSON object"),
    "a list": ({"text": "[1]"}, "JSON, but no object"),
    "nothing": ({"text": ""}, "not a JSON object"),
    "UTF-16": ({"body": json.dumps(GOOD).encode("utf-16")}, "not a JSON object"),
    "bytes that are no text": ({"body": b'{"a": "\xff\xfe"}'}, "not a JSON object"),
    "deeply nested": ({"text": "[" * 100_000}, "recursion limit exceeded"),
    "NaN in our JSON": ({"text": json.dumps(with_first(math.nan))}, "finite number"),
    "compressed": ({"body": b"\x1f\x8b\x08", "headers": {"Content-Encoding": "gzip"}}, "not a JSON object"),
    "escape sequences": ({"text": "\x1b[2J", "content_type": "text/plain"}, "␛[2J"),
    "elsewhere": ({"status": 307, "headers": {"Location": "http://b/"}}, "redirects to 'http://b/'"),
    "refused": ({"status": 400, "text": "too long"}, "answered 400: too long"),
    "enormous": ({"body": b" " * (17 << 20)}, "more than 16 MiB"),
}


@pytest.mark.parametrize(("response", "words"), PAGES.values(), ids=PAGES)
def test_a_page_that_is_no_answer_is_an_error_of_one_line_with_the_address(response, words):
    with pytest.raises(EngineError) as caught:
        ask(**response)
    assert words in str(caught.value)
    assert str(caught.value).startswith("http://127.0.0.1:")
    assert not {"\n", "\x1b"} & set(str(caught.value))


def test_an_answer_that_trickles_ends_at_the_timeout():
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.01)

    async def act(url: str) -> None:
        async with SGLangEngine([url], request_timeout=0.1) as engine:
            await engine.generate(PROMPT, PARAMS)

    with pytest.raises(EngineError, match=r"gave no answer within 0\.1 s"):
        serving({"/generate": trickle}, act)


@pytest.mark.parametrize("info", ["[]", "{}", '{"model_path": null}', '{"model_path": ""}', "<html>"])
@pytest.mark.long
def test_a_server_that_does_not_say_what_it_serves_is_no_server(info):
    async def model_info(request: web.Request) -> web.Response:
        return web.Response(text=info, content_type="application/json")

    async def act(url: str) -> None:
        async with SGLangEngine([url], attempts=2) as engine:
            await engine.clients[0].info()

    with pytest.raises(EngineError, match=r"^http://127\.0\.0\.1:\d+/model_info "):
        serving({"/model_info": model_info}, act)


def test_a_log_prob_that_rounding_put_above_zero_is_zero():
    done = completion_of(with_first(1.2e-7), PARAMS, len(PROMPT), "u", VOCABULARY)
    assert done.logprobs[0] == 0.0 < 1.2e-7 < ROUNDING


def test_an_answer_that_was_broken_off_has_no_tokens_whatever_else_it_lacks():
    done = completion_of({"meta_info": {"finish_reason": {"type": "abort", "message": "m"}}}, PARAMS, 3, "u")
    assert (done.finish_reason, done.token_ids, done.logprobs) == (FinishReason.ABORT, [], [])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TOKEN = st.integers(min_value=0, max_value=55) | ANYTHING
REASONS = st.sampled_from([None, *({"type": one} for one in ("stop", "length", "abort", "x"))]) | ANYTHING
ANSWERS = ANYTHING | st.builds(
    lambda ids, other, logprobs, reason, counts: {
        "output_ids": ids,
        "meta_info": {
            "output_token_logprobs": [[lp, token, None] for lp, token in zip(logprobs, other or ids, strict=False)],
            "finish_reason": reason,
            "prompt_tokens": counts[0],
            "cached_tokens": counts[1],
        },
    },
    ids=st.lists(TOKEN, max_size=5),
    other=st.none() | st.lists(TOKEN, max_size=5),
    logprobs=st.lists(st.floats(max_value=0) | st.floats(-3, 0) | ANYTHING, min_size=5, max_size=5),
    reason=REASONS,
    counts=st.tuples(st.just(3) | ANYTHING, st.integers(0, 4) | ANYTHING),
)


@examples(100)
@given(ANSWERS)
def test_whatever_is_answered_is_a_completion_within_the_rules_or_an_engine_error(answer):
    try:
        body = json.dumps(answer).encode()
    except (ValueError, UnicodeEncodeError):
        return
    try:
        done = completion_of(read_object(body), PARAMS, len(PROMPT), "u", VOCABULARY)
    except (EngineError, ValueError):
        return
    assert len(done.token_ids) == len(done.logprobs) <= PARAMS.max_new_tokens
    assert all(type(token) is int and 0 <= token < VOCABULARY for token in done.token_ids)
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in done.logprobs)
    assert bool(done.token_ids) != (done.finish_reason is FinishReason.ABORT)


@pytest.mark.parametrize("url", ["nowhere", "ftp://host", "http://", "http://host..name", f"http://{'x' * 64}"])
def test_what_is_no_address_is_an_error_of_the_engine(url):
    async def send() -> None:
        http = Http(1)
        try:
            await http.send(url)
        finally:
            await http.close()

    with pytest.raises(EngineError, match="is not an address such as"):
        asyncio.run(send())


def test_a_server_may_name_any_model():
    assert not any(same_model(name, "data/tiny_model") for name in ("x" * 5000, "\0", "data/tiny_honest_model"))
    assert same_model("./data/tiny_model", "data/tiny_model")
