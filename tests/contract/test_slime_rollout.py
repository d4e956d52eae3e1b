"""slime's generate hook with the real server as slime's router: every token accounted for, every status earned."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from chat_endpoint import ChatEndpoint, fails, page
from recording_proxy import RecordingProxy
from slime_contract import SAMPLES, arguments, sample_of
from test_engines import chat, next_logprobs

from selfplay_pipeline.config.load import load_config
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.generate.records import ChatMessage
from selfplay_pipeline.slime.data import game_of
from selfplay_pipeline.slime.rollout import generate, router_of

pytestmark = pytest.mark.slime
BOARD = load_config("tiny", {}).game
TALKATIVE = BOARD.model_copy(update={"max_errors": 20})
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 600, "stop": None, "stop_token_ids": None}
SAMPLING |= {"skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False}


@pytest.fixture
def router(sglang_server):
    with RecordingProxy(sglang_server.url) as proxy:
        yield proxy


@pytest.fixture(params=SAMPLES)
def kind(request) -> type:
    """Samples of slime versions with and without `append_response_tokens`, and slime's own if it is there."""
    return SAMPLES[request.param]


def with_router(proxy: RecordingProxy, **given: Any) -> Any:
    address, port = proxy.url.removeprefix("http://").split(":")
    return arguments(sglang_router_ip=address, sglang_router_port=int(port), **given)


def play(args: Any, *samples: Any, evaluation: bool = False, **sampling: Any) -> list[Any]:
    async def play_all() -> list[Any]:
        params = SAMPLING | sampling
        try:
            done = await asyncio.gather(*(generate(args, sample, params, evaluation=evaluation) for sample in samples))
        finally:
            await router_of(args, asyncio.get_running_loop()).close()
        assert params == SAMPLING | sampling, "the parameters are those of all samples"
        return done

    return asyncio.run(play_all())


def check(sample: Any, proxy: RecordingProxy, prompt_ids: list[int]) -> None:
    """The sample is what the server was sent and what it answered, token for token."""
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length
    assert sample.tokens[: -sample.response_length or None] == prompt_ids
    assert sample.response == chat().tokenizer.decode(sample.tokens[len(prompt_ids) :], skip_special_tokens=False)
    assert not sample.loss_mask or sample.loss_mask[-1] == 1
    # Samples of one prompt are told apart by their keys, and an aborted attempt from the next by being the earlier one.
    answered = {
        len(exchange["request"]["input_ids"]): exchange
        for exchange in proxy.exchanges
        if exchange["headers"].get("X-SMG-Routing-Key", sample.session_id) == sample.session_id
        and is_start(exchange["request"]["input_ids"] + exchange["response"]["output_ids"], sample.tokens)
    }
    asked = [answered[length] for length in sorted(answered)]
    mask, logprobs = [0] * sample.response_length, [0.0] * sample.response_length
    for exchange in asked:
        sent, got = exchange["request"]["input_ids"], exchange["response"]
        assert exchange["request"]["return_logprob"] is True
        for offset, (logprob, token, _) in enumerate(got["meta_info"]["output_token_logprobs"]):
            at = len(sent) - len(prompt_ids) + offset
            assert sample.tokens[len(prompt_ids) + at] == token
            mask[at], logprobs[at] = 1, logprob
    assert sample.loss_mask == mask
    assert sample.rollout_log_probs == logprobs
    assert sample.weight_versions == [e["response"]["meta_info"]["weight_version"] for e in asked]


def is_start(tokens: list[int], of: list[int]) -> bool:
    return of[: len(tokens)] == tokens


def replayed(sample: Any) -> Any:
    """The rules' own verdict on the dialogue that the sample tells."""
    game, state = game_of(sample.metadata)
    session = game.start(state)
    for turn in sample.metadata["episode"]["turns"]:
        assert session.seats == (turn["seat"],)
        assert session.step(turn["seat"], turn["text"]).action == turn["action"]
    return session


@pytest.mark.parametrize("partner", ["shy", "sharing"])
def test_a_finished_episode_is_exact_in_every_token(router, kind, partner):
    args = with_router(router, selfplay={"partner": partner, "max_new_tokens": 64})
    samples = [sample_of(kind, BOARD, number) for number in range(8)]
    prompts = [chat().rendered_prompt([ChatMessage(**message) for message in sample.prompt]) for sample in samples]
    for sample in samples[::2]:  # every other one as slime renders it with --apply-chat-template
        sample.prompt = chat().tokenizer.apply_chat_template(sample.prompt, add_generation_prompt=True, tokenize=False)
    for sample, prompt_ids in zip(play(args, *samples), prompts, strict=True):
        check(sample, router, prompt_ids)
        assert sample.status is kind.Status.COMPLETED
        session = replayed(sample)
        assert (session.outcome().rewards[0], str(session.status)) == (
            sample.reward,
            sample.metadata["episode"]["status"],
        )
        assert not sample.remove_sample
    assert any(sample.reward > 0 for sample in samples)


def test_logprobs_are_those_of_the_forward_pass(router, kind):
    (sample,) = play(with_router(router), sample_of(kind, BOARD), temperature=0.7)
    expected = next_logprobs(sample.tokens, 0.7)
    first = len(sample.tokens) - sample.response_length
    for at, own in enumerate(sample.loss_mask):
        token = sample.tokens[first + at]
        wanted = float(expected[first + at - 1][token]) if own else 0.0
        assert sample.rollout_log_probs[at] == pytest.approx(wanted, abs=1e-4)


def test_a_turn_over_its_limit_is_an_error_to_read_and_the_game_goes_on(router, kind):
    args = with_router(router, max_turns=3, selfplay={"partner": "shy", "max_new_tokens": 2})
    (sample,) = play(args, sample_of(kind, TALKATIVE), temperature=0.0)
    prompt_ids = sample.tokens[: -sample.response_length]
    check(sample, router, prompt_ids)
    assert sum(sample.loss_mask) == 6
    assert sample.response.count("<|im_end|>\n<|im_start|>user\nerror<|im_end|>") == 2
    turns = sample.metadata["episode"]["turns"]
    assert [(turn["seat"], turn["action"]) for turn in turns] == [(0, "invalid")] * 3


def test_each_limit_outside_the_rules_truncates(router, kind):
    def played(args: Any, *, evaluation: bool = False, **sampling: Any) -> Any:
        router.exchanges.clear()
        (sample,) = play(args, sample_of(kind, TALKATIVE), evaluation=evaluation, **sampling)
        assert sample.status is kind.Status.TRUNCATED
        assert sample.reward == 0.0
        assert not sample.remove_sample
        check(sample, router, prompt_ids)
        return sample

    prompt_ids = chat().rendered_prompt([ChatMessage(**message) for message in sample_of(kind, TALKATIVE).prompt])
    one_turn = played(with_router(router, max_turns=1), temperature=0.0)
    said = one_turn.response_length
    assert one_turn.metadata["episode"]["status"] == "turn_limit"
    assert len(one_turn.metadata["episode"]["turns"]) == 2

    cut = played(with_router(router), temperature=0.0, max_new_tokens=said - 1)
    assert (cut.response_length, cut.metadata["episode"]["turns"]) == (said - 1, [])
    assert cut.metadata["episode"]["status"] == "context_length"

    unread = played(with_router(router), temperature=0.0, max_new_tokens=said + 1)
    assert (unread.response_length, len(unread.metadata["episode"]["turns"])) == (said, 2)

    context = len(prompt_ids) + said - 1
    assert played(with_router(router, rollout_max_context_len=context), temperature=0.0).response_length == said - 1
    limits = {"rollout_max_context_len": context, "eval_max_context_len": context - 1}
    evaluated = played(with_router(router, **limits), evaluation=True, temperature=0.0)
    assert evaluated.response_length == said - 2

    for limit in ({"max_new_tokens": 0}, {}):
        full = with_router(router, rollout_max_context_len=len(prompt_ids))
        with pytest.raises(UserError, match=f"its prompt of {len(prompt_ids)} tokens leaves room for none"):
            play(full, sample_of(kind, TALKATIVE), **limit)


def test_an_aborted_sample_comes_again_and_starts_afresh(router, kind):
    args = with_router(router, selfplay={"partner": "sharing", "max_new_tokens": 600})
    sample = sample_of(kind, BOARD)

    async def play_and_abort() -> None:
        # Without an end of turn the first turn lasts until it is aborted.
        endless = SAMPLING | {"ignore_eos": True, "logit_bias": {str(chat().end_of_turn): -100.0}}
        playing = asyncio.create_task(generate(args, sample, endless))
        async with aiohttp.ClientSession() as http:
            while not playing.done():
                await asyncio.sleep(0.02)
                await http.post(f"{router.url}/abort_request", json={"abort_all": True})
        await playing
        await router_of(args, asyncio.get_running_loop()).close()

    asyncio.run(play_and_abort())
    assert sample.status is kind.Status.ABORTED
    assert sample.remove_sample
    sample.metadata["start_rollout_id"] = 3
    router.exchanges.clear()
    play(with_router(router), sample)
    assert sample.status is kind.Status.COMPLETED
    assert not sample.remove_sample
    assert sample.metadata["start_rollout_id"] == 3
    check(sample, router, sample.tokens[: -sample.response_length])
    assert replayed(sample).outcome().rewards[0] == sample.reward


@pytest.fixture(autouse=True)
def _no_retries(monkeypatch) -> None:
    monkeypatch.setattr("selfplay_pipeline.generate.chat_model.MAX_RETRIES", 0)


def with_chat(proxy: RecordingProxy, endpoint: ChatEndpoint, **chat: Any) -> Any:
    section = {"base_url": endpoint.url, "timeout": 60, **chat}
    return with_router(proxy, selfplay={"partner": "chat", "max_new_tokens": 64, "chat": section})


def test_a_chat_model_can_sit_opposite(router, kind):
    with ChatEndpoint(delay=0.01) as endpoint:
        samples = play(with_chat(router, endpoint), *(sample_of(kind, BOARD, number) for number in range(4)))
    for sample in samples:
        check(sample, router, sample.tokens[: -sample.response_length])
        assert sample.status is kind.Status.COMPLETED
        assert replayed(sample).outcome().rewards[0] == sample.reward
    waited = [sample.non_generation_time for sample in samples]
    assert sum(waited) >= 0.01 * len(endpoint.requests)
    assert len(endpoint.requests) == sum(turn["seat"] for s in samples for turn in s.metadata["episode"]["turns"])


@pytest.mark.parametrize(
    "trouble",
    {
        "rate-limited": fails(429, Retry_After="1000"),
        "broken": fails(500),
        "garbage": page("<html>"),
        "refused": fails(400),
    }.items(),
    ids=lambda trouble: trouble[0],
)
def test_a_partner_that_fails_costs_one_sample(router, kind, trouble):
    with ChatEndpoint([trouble[1]]) as endpoint:
        args = with_chat(router, endpoint, max_concurrency=1)
        samples = play(args, *(sample_of(kind, BOARD, number) for number in range(4)), temperature=0.0)
    lost = [sample for sample in samples if sample.status is kind.Status.FAILED]
    assert len(lost) == 1
    assert lost[0].remove_sample
    assert lost[0].reward == 0.0
    assert lost[0].metadata["episode"]["status"] == "engine_failure"
    check(lost[0], router, lost[0].tokens[: -lost[0].response_length])
    kept = [sample for sample in samples if sample is not lost[0]]
    assert all(sample.status is kind.Status.COMPLETED and not sample.remove_sample for sample in kept)


def test_a_partner_that_is_too_slow_costs_one_sample(router, kind):
    with ChatEndpoint(delay=60) as endpoint:
        (sample,) = play(with_chat(router, endpoint, timeout=0.2), sample_of(kind, BOARD), temperature=0.0)
    assert sample.status is kind.Status.FAILED
    assert 0.2 <= sample.non_generation_time < 60


def test_what_no_other_sample_would_mend_is_said_at_once(router, kind):
    for args, words in (
        (with_router(router, selfplay={"partner": "nobody"}), "there is no 'nobody'"),
        (with_router(router, selfplay={"patner": "shy"}), "selfplay.patner"),
        (with_router(router, max_turns=0), "max_turns"),
    ):
        with pytest.raises(UserError, match=words):
            play(args, sample_of(kind, BOARD))
    with pytest.raises(UserError, match=r"metadata\.game_state is missing"):
        play(with_router(router), sample_of(kind, BOARD, metadata={}))


def test_a_request_names_its_sample_to_a_hashing_router(router, kind):
    play(with_router(router, router_policy="consistent_hashing"), sample_of(kind, BOARD, session_id="a-sample"))
    assert {exchange["headers"].get("X-SMG-Routing-Key") for exchange in router.exchanges} == {"a-sample"}
    router.exchanges.clear()
    play(with_router(router), sample_of(kind, BOARD))
    assert all("X-SMG-Routing-Key" not in exchange["headers"] for exchange in router.exchanges)
