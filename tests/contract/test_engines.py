"""The engine contract, for both engines, against transformers' own forward pass."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from chat_endpoint import body, page
from shared_server import started

from selfplay_pipeline.core.checkpoints import check_checkpoint
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.transformers_engine import TransformersEngine
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.generate.records import ChatMessage
from selfplay_pipeline.generate.trajectory import ChatTokenizer

TINY = "data/tiny_model"


@cache
def model(folder: str = TINY):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


@cache
def chat() -> ChatTokenizer:
    return ChatTokenizer.load(TINY)


@cache
def prompt() -> tuple[int, ...]:
    messages = [ChatMessage(role="system", content="match"), ChatMessage(role="user", content="see Ava BLEU 7")]
    return tuple(chat().rendered_prompt(messages))


def next_logprobs(ids, temperature: float = 1.0, folder: str = TINY):
    """log softmax(logits / T) after every position: (len(ids), vocabulary)."""
    import torch

    with torch.inference_mode():
        return torch.log_softmax(model(folder)(torch.tensor([list(ids)])).logits[0].float() / temperature, -1)


@pytest.fixture(scope="module")
def perturbed(tmp_path_factory) -> str:
    """Another checkpoint of the same architecture and tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    folder = str(tmp_path_factory.mktemp("other"))
    other = AutoModelForCausalLM.from_pretrained(TINY, dtype="float32")
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    other.save_pretrained(folder)
    chat().tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(params=["sglang", "transformers"])
def ask(request):
    """A function that runs coroutines of an engine on one event loop."""
    with asyncio.Runner() as runner:
        if request.param == "sglang":
            engine = SGLangEngine([request.getfixturevalue("sglang_server").url])
        else:
            engine = TransformersEngine(TINY)
        yield lambda act: runner.run(act(engine))
        runner.run(engine.close())


def complete(ask, params: SamplingParams, ids=None) -> Completion:
    return ask(lambda engine: engine.generate(list(ids or prompt()), params, session="a"))


def test_greedy_tokens_and_logprobs_are_those_of_the_forward_pass(ask):
    done = complete(ask, SamplingParams(0.0, 12, (chat().end_of_turn,)))
    logprobs = next_logprobs([*prompt(), *done.token_ids])
    for offset, (token, logprob) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        row = logprobs[len(prompt()) - 1 + offset]
        assert token == int(row.argmax())
        assert logprob == pytest.approx(float(row[token]), abs=1e-4)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sampled_logprobs_are_of_the_temperature_scaled_distribution(ask, temperature):
    done = complete(ask, SamplingParams(temperature, 12, (chat().end_of_turn,)))
    logprobs = next_logprobs([*prompt(), *done.token_ids], temperature)
    expected = [float(logprobs[len(prompt()) - 1 + i][token]) for i, token in enumerate(done.token_ids)]
    assert done.logprobs == pytest.approx(expected, abs=1e-4)


def test_sampling_follows_the_softmax_of_scaled_logits(ask):
    draws, temperature = 2000, 1.5
    # What is named first in a message is uncertain; that it is a message is not.
    ids = [*prompt(), *chat().tokenizer.encode("[message]", add_special_tokens=False)]

    async def sample(engine):
        params = SamplingParams(temperature, 1, ())
        return await asyncio.gather(*(engine.generate(ids, params, session=str(i)) for i in range(draws)))

    counts = Counter(done.token_ids[0] for done in ask(sample))
    expected = next_logprobs(ids, temperature)[-1].exp()
    distance = 0.5 * sum(abs(counts[token] / draws - float(p)) for token, p in enumerate(expected))
    # Expected distance of an exact sampler: about sum sqrt(p (1 - p) / (2 pi draws)); three times that is far out.
    exact = float((expected * (1 - expected) / (2 * 3.14159 * draws)).sqrt().sum())
    assert distance < 3 * exact


def test_transformers_answers_a_batch_as_it_answers_each_request_alone():
    seeds = range(5)
    asked = [([*prompt(), *prompt()[: 3 * seed]], SamplingParams(0.8, 4 + seed, (), seed=seed)) for seed in seeds]
    asked += [(prompt()[seed:], SamplingParams(0.0, 12, (chat().end_of_turn,))) for seed in seeds]

    async def both():
        engine = TransformersEngine(TINY)
        together = await asyncio.gather(*(engine.generate(ids, params) for ids, params in asked))
        return together, [await engine.generate(ids, params) for ids, params in asked]

    for batched, alone in zip(*asyncio.run(both()), strict=True):
        assert (batched.token_ids, batched.finish_reason) == (alone.token_ids, alone.finish_reason)
        assert batched.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_transformers_fails_no_later_request_with_a_bad_one_and_computes_none_that_was_cancelled():
    params = SamplingParams(0.0, 4, ())

    async def ask() -> tuple[Completion, int]:
        engine, computed = TransformersEngine(TINY), []
        generate = engine._generate
        engine._generate = lambda batch: (computed.extend(batch), generate(batch))[1]
        with pytest.raises(IndexError):
            await engine.generate([10**6], params)
        first, gone = (asyncio.create_task(engine.generate(prompt(), params)) for _ in range(2))
        await asyncio.sleep(0)
        gone.cancel()
        return await first, len(computed)

    done, computed = asyncio.run(ask())
    assert len(done.token_ids) == 4 and computed == 2


def test_a_stop_token_is_the_last_token_and_a_limit_is_length(ask):
    params = SamplingParams(0.0, 60, (chat().end_of_turn,))
    stopped = complete(ask, params)
    assert (stopped.finish_reason, stopped.token_ids[-1]) == (FinishReason.STOP, chat().end_of_turn)
    cut = complete(ask, SamplingParams(0.0, 2, (chat().end_of_turn,)))
    assert (cut.finish_reason, cut.token_ids) == (FinishReason.LENGTH, stopped.token_ids[:2])
    assert stopped.prompt_tokens == len(prompt())


def test_a_stop_token_that_is_the_last_one_allowed_makes_a_reply_complete(ask):
    stopped = complete(ask, SamplingParams(0.0, 60, (chat().end_of_turn,)))
    just = complete(ask, SamplingParams(0.0, len(stopped.token_ids), (chat().end_of_turn,)))
    assert (just.finish_reason, just.token_ids) == (FinishReason.STOP, stopped.token_ids)
    less = complete(ask, SamplingParams(0.0, len(stopped.token_ids) - 1, (chat().end_of_turn,)))
    assert (less.finish_reason, less.token_ids) == (FinishReason.LENGTH, stopped.token_ids[:-1])


def test_reload_changes_the_answers_to_the_new_checkpoints(ask, perturbed):
    params = SamplingParams(0.0, 6, ())
    before = complete(ask, params)
    ask(lambda engine: engine.reload(Path(perturbed)))
    after = complete(ask, params)
    logprobs = next_logprobs([*prompt(), *after.token_ids], folder=perturbed)
    expected = [float(logprobs[len(prompt()) - 1 + i][token]) for i, token in enumerate(after.token_ids)]
    assert after.logprobs == pytest.approx(expected, abs=1e-4)
    assert after.logprobs != pytest.approx(before.logprobs, abs=1e-3)


def test_a_server_that_gave_its_memory_back_answers_as_before_once_it_is_reloaded(sglang_server):
    """On a CPU SGLang goes through all of it, but for the memory, which it keeps there."""
    params, said = SamplingParams(0.0, 12, (chat().end_of_turn,)), []

    async def play() -> list[Completion]:
        async with SGLangEngine([sglang_server.url], tell=said.append) as engine:
            answers = [await engine.generate(list(prompt()), params)]
            for _ in range(2):
                await engine.release()
                await engine.reload(Path(TINY))
                answers.append(await engine.generate(list(prompt()), params))
        return answers

    first, *others = asyncio.run(play())
    assert said == [], "it did as it was told"
    for other in others:
        assert other.token_ids == first.token_ids
        assert other.logprobs == pytest.approx(first.logprobs, abs=1e-6)


def test_a_prompt_that_extends_the_last_one_is_found_in_the_cache(sglang_server):
    async def play():
        engine = SGLangEngine([sglang_server.url])
        first = await engine.generate(list(prompt()), SamplingParams(0.0, 5, ()), session="b")
        longer = [*prompt(), *first.token_ids, 5, 6]
        second = await engine.generate(longer, SamplingParams(0.0, 1, ()), session="b")
        await engine.close()
        return len(prompt()) + 4, second.cached_tokens

    seen, cached = asyncio.run(play())
    assert cached >= seen


GOOD = {"output_ids": [5], "meta_info": {"output_token_logprobs": [[-0.5, 5, None]], "finish_reason": {"type": "stop"}}}
GOOD["meta_info"] |= {"prompt_tokens": 1, "cached_tokens": 0}


@pytest.mark.parametrize(
    "trouble",
    [body({}, 408), body({}, 429), body({}, 503), body({}), body([1]), page("{", content_type="application/json")],
    ids=["timeout", "busy", "away", "nothing", "list", "broken"],
)
def test_an_answer_that_may_be_better_next_time_is_asked_for_again(trouble):
    answers = iter([trouble, body(GOOD)])

    async def answer(request: web.Request) -> web.Response:
        return next(answers)(request)

    async def play() -> Completion:
        app = web.Application()
        app.router.add_post("/generate", answer)
        async with TestServer(app) as server:
            engine = SGLangEngine([str(server.make_url("/"))], attempts=2)
            done = await engine.generate([1], SamplingParams(0.0, 1, ()))
            await engine.close()
            return done

    assert asyncio.run(play()).token_ids == [5]


def test_a_checkpoint_that_is_not_there_is_an_engine_error(sglang_server, tmp_path):
    async def reload():
        engine = SGLangEngine([sglang_server.url])
        try:
            await engine.reload(tmp_path / "nothing")
        finally:
            await engine.close()

    with pytest.raises(EngineError, match="nothing"):
        asyncio.run(reload())
    sglang_server.restore()


def in_shards(weights: str, folder: Path) -> Path:
    """The same model with its weights in several files."""
    model(weights).save_pretrained(folder, max_shard_size="500KB")
    assert len([*folder.glob("*.safetensors")]) > 1
    chat().tokenizer.save_pretrained(folder)
    return folder


def test_weights_in_shards_are_loaded_and_those_beside_another_set_are_not(ask, sglang_server, perturbed, tmp_path):
    folder = in_shards(perturbed, tmp_path / "shards")
    ask(lambda engine: engine.reload(folder))
    done = complete(ask, SamplingParams(0.0, 1, ()))
    row = next_logprobs(prompt(), folder=perturbed)[-1]
    assert done.token_ids == [int(row.argmax())]
    assert done.logprobs == [pytest.approx(float(row.max()), abs=1e-4)]
    shutil.copy(f"{TINY}/model.safetensors", folder)
    with pytest.raises((EngineError, UserError), match=r"holds model\.safetensors beside the weights"):
        ask(lambda engine: engine.reload(folder))


@pytest.fixture
def two_sets(perturbed, sglang_server, tmp_path) -> Iterator[tuple[str, Path]]:
    """A server that has loaded a folder with two sets of weights, and the folder."""
    shutil.copy(f"{TINY}/model.safetensors", in_shards(perturbed, tmp_path / "model"))
    asked = {"model_path": str(tmp_path / "model")}
    assert httpx.post(f"{sglang_server.url}/update_weights_from_disk", json=asked, timeout=60).json()["success"]
    yield sglang_server.url, tmp_path / "model"
    sglang_server.restore()


@pytest.fixture
def two_heads(tmp_path) -> Iterator[tuple[str, Path]]:
    """A server of a model whose stored head is not the embedding that it is tied to, and the folder."""
    folder = Path(shutil.copytree(TINY, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    with started(tmp_path / "server.log", str(folder)) as server:
        yield server.url, folder


@pytest.mark.parametrize(
    ("kind", "message"),
    [("two_sets", "beside the weights of"), ("two_heads", r"differs from model\.embed_tokens\.weight")],
)
def test_a_folder_that_is_refused_is_another_model_for_sglang_than_for_transformers(request, kind, message):
    """Once SGLang and transformers agree on it, the refusal may go."""
    url, folder = request.getfixturevalue(kind)
    with pytest.raises(UserError, match=message):
        check_checkpoint(str(folder))
    asked = {"input_ids": prompt(), "return_logprob": True, "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
    answer = httpx.post(f"{url}/generate", json=asked, timeout=60).json()
    played, token = answer["meta_info"]["output_token_logprobs"][0][:2]
    logprob = float(next_logprobs(prompt(), folder=str(folder))[-1][token])
    print(f"SGLang {played:.3f}, transformers {logprob:.3f}")
    assert abs(played - logprob) > 0.01, "rounding is below 1e-4"
