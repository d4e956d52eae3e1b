"""Faults of servers: dead, slow, overloaded, lying, and restarted ones."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from chaos.cases import Case
from chaos.fake_server import Answer, Fault, honest, reset
from chaos.outside import Ended
from chaos.scenes import PATIENT, SERVED, Command, Scene, dice, disturbed

FAILED = {1, 2}
PATIENCE = 150.0


def cases(seed: int) -> list[Case]:
    return [*_lies(), *_failing(seed), *_about_the_model(), *_dying()]


def _served_with(fault: Fault, scene: Scene) -> Ended:
    scene.server.fault = fault
    return scene.start().ended(PATIENCE)


def _case(kind: str, name: str, fault: Fault, codes: set[int], command: Command = SERVED) -> Case:
    return disturbed(kind, name, command, partial(_served_with, fault), codes, names_server=True)


# Lies: answers with status 200 and JSON of the right kind that are impossible.


def _token(answer: Answer, **parts: Any) -> Answer:
    """Returns the answer with another id (`id`) or log-prob (`logprob`) of its second token."""
    ids, entries = list(answer["output_ids"]), [list(entry) for entry in answer["meta_info"]["output_token_logprobs"]]
    if "id" in parts:
        ids[1] = entries[1][1] = parts["id"]
    if "logprob" in parts:
        entries[1][0] = parts["logprob"]
    return answer | {"output_ids": ids, "meta_info": answer["meta_info"] | {"output_token_logprobs": entries}}


def _meta(answer: Answer, **parts: Any) -> Answer:
    return answer | {"meta_info": answer["meta_info"] | parts}


def _without(answer: Answer, key: str) -> Answer:
    meta = {name: value for name, value in answer["meta_info"].items() if name != key}
    return {name: value for name, value in answer.items() if name != key} | (
        {"meta_info": meta} if key != "meta_info" else {}
    )


def _long(answer: Answer) -> Answer:
    """Returns an answer with more tokens than requested."""
    ids = [answer["output_ids"][0]] * 5000
    logprobs = [[-0.5, token, None] for token in ids]
    return _meta(answer | {"output_ids": ids}, output_token_logprobs=logprobs, finish_reason={"type": "length"})


LIES: dict[str, Callable[[Answer], Any]] = {
    "log-prob-nan": lambda answer: _token(answer, logprob=math.nan),
    "log-prob-null": lambda answer: _token(answer, logprob=None),
    "log-prob-positive": lambda answer: _token(answer, logprob=0.7),
    "log-prob-infinite": lambda answer: _token(answer, logprob=-math.inf),
    "log-prob-text": lambda answer: _token(answer, logprob="high"),
    "id-beyond-vocabulary": lambda answer: _token(answer, id=100_000),
    "id-negative": lambda answer: _token(answer, id=-1),
    "id-beyond-32-bits": lambda answer: _token(answer, id=1 << 40),
    "id-fraction": lambda answer: _token(answer, id=261.5),
    "id-text": lambda answer: _token(answer, id="261"),
    "finish-reason-unknown": lambda answer: _meta(answer, finish_reason={"type": "tired"}),
    "finish-reason-null": lambda answer: _meta(answer, finish_reason=None),
    "finish-reason-text": lambda answer: _meta(answer, finish_reason="stop"),
    "fewer-log-probs-than-ids": lambda answer: _meta(
        answer, output_token_logprobs=answer["meta_info"]["output_token_logprobs"][:-1]
    ),
    "log-probs-of-other-ids": lambda answer: _meta(
        answer, output_token_logprobs=[[-0.5, 5, None] for _ in answer["output_ids"]]
    ),
    "log-probs-without-ids": lambda answer: _meta(answer, output_token_logprobs=[-0.5 for _ in answer["output_ids"]]),
    "more-tokens-than-asked": _long,
    "no-tokens": lambda answer: _meta(answer | {"output_ids": []}, output_token_logprobs=[]),
    "prompt-of-another-length": lambda answer: _meta(answer, prompt_tokens=7),
    "prompt-length-negative": lambda answer: _meta(answer, prompt_tokens=-1),
    "no-output-ids": lambda answer: _without(answer, "output_ids"),
    "no-meta-info": lambda answer: _without(answer, "meta_info"),
    "no-log-probs": lambda answer: _without(answer, "output_token_logprobs"),
    "no-prompt-length": lambda answer: _without(answer, "prompt_tokens"),
    "a-list": lambda answer: [answer],
    "a-number": lambda answer: 7,
    "null": lambda answer: None,
}


def _lies() -> list[Case]:
    def telling(lie: Callable[[Answer], Any]) -> Fault:
        async def fault(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
            return web.Response(text=json.dumps(lie(answer)), content_type="application/json")

        return fault

    found = [_case("lying servers", f"answers-{name}", telling(lie), FAILED) for name, lie in LIES.items()]
    at_first = {name: _first(20, telling(LIES[name])) for name in ("log-prob-nan", "no-meta-info")}
    found += [_case("lying servers", f"answers-{name}-at-first", fault, {0, 1}) for name, fault in at_first.items()]
    return found


def _first(count: int, fault: Fault) -> Fault:
    """Returns a fault that affects only the first requests."""

    async def at_first(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
        return await (fault if number <= count else honest)(request, number, answer)

    return at_first


# Failures at the level of HTTP: no answer, half an answer, an answer of another kind.


def _text(text: str, kind: str, status: int = 200, **headers: str) -> Fault:
    async def fault(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
        return web.Response(text=text, content_type=kind, status=status, headers=headers)

    return fault


async def _nonsense(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    return web.Response(body=bytes(range(256)) * 4, content_type="application/json")


async def _packed(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    return web.Response(body=b"not gzip", content_type="application/json", headers={"Content-Encoding": "gzip"})


async def _half(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    """Announce the full length of the answer, send half of it, and hang up."""
    body = json.dumps(answer).encode()
    response = web.StreamResponse(headers={"Content-Length": str(len(body)), "Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def _endless(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    while True:
        await response.write(b" " * 1000)
        await asyncio.sleep(0.01)


async def _reset(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    return await reset(request)


async def _hung(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def _slow(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
    await asyncio.sleep(0.2)
    return web.json_response(answer)


def _failing(seed: int) -> list[Case]:
    html = _text("<html><body>Sign in to the network</body></html>", "text/html")
    for_good = {
        "html": html,
        "text-that-is-no-json": _text("meta_info", "application/json"),
        "torn-json": _text('{"meta_info": {"output_token_logprobs": [[-0.5, ', "application/json"),
        "an-empty-body": _text("", "application/json"),
        "binary-nonsense": _nonsense,
        "a-false-encoding": _packed,
        "half-an-answer": _half,
        "an-endless-answer": _endless,
        "resets": _reset,
        "nothing-for-ever": _hung,
        "400": _text('{"error": "no"}', "application/json", 400),
        "404": _text("not found", "text/plain", 404),
        "500": _text("error", "text/plain", 500),
        "a-redirect-to-itself": _text("", "text/plain", 307, Location="/generate"),
    }
    found = [_case("failing servers", f"answers-{name}", fault, FAILED) for name, fault in for_good.items()]
    at_first = {
        "html": html,
        "503": _text("busy", "text/plain", 503),
        "429": _text("slow down", "text/plain", 429, **{"Retry-After": "1"}),
        "resets": _reset,
        "half-answers": _half,
        "nothing": _hung,
    }
    found += [
        _case("failing servers", f"{name}-at-first", _first(24, fault), {0, 1}) for name, fault in at_first.items()
    ]
    found.append(_case("failing servers", "slow", _slow, {0}))
    for count in (1, 2, 3):
        chances = dice(seed, f"mixed-{count}")
        faults = [html, _reset, _half, _nonsense, _text("busy", "text/plain", 503)]
        found.append(_case("failing servers", f"mixed-failures-{count}", _mixed(chances, faults), {0, 1}))
    return found


def _mixed(chances: random.Random, faults: list[Fault]) -> Fault:
    """Returns a fault that affects every third request at random."""

    async def fault(request: web.Request, number: int, answer: Answer) -> web.StreamResponse:
        return await (chances.choice(faults) if chances.random() < 1 / 3 else honest)(request, number, answer)

    return fault


def _about_the_model() -> list[Case]:
    """Returns cases of false answers to requests for the name of the served model."""

    def info(fault: Fault, scene: Scene) -> Ended:
        scene.server.info = fault
        return scene.start().ended(PATIENCE)

    faults = {
        "html": _text("<html></html>", "text/html"),
        "a-list": _text("[]", "application/json"),
        "no-name": _text("{}", "application/json"),
        "a-number-for-a-name": _text('{"model_path": 7}', "application/json"),
    }

    def loaded_meanwhile(version: str | None, scene: Scene) -> Ended:
        """Let another program load its weights; without a version, the earlier version is still reported."""
        running = scene.start()
        scene.expect(scene.server.when_asked(60), "the server was not asked so often")
        scene.server.model, scene.server.version = "/somebody/else", version or scene.server.version
        return running.ended(PATIENCE)

    def case(name: str, cause: Callable[[Scene], Ended], codes: set[int] = FAILED) -> Case:
        return disturbed("lying servers", name, SERVED, cause, codes, names_server=True)

    return [
        # A number is no known model, so the server may be told to load ours.
        *(
            case(f"model-info-{name}", partial(info, fault), {0, *FAILED} if "number" in name else FAILED)
            for name, fault in faults.items()
        ),
        case("other-weights-loaded-with-a-version", partial(loaded_meanwhile, "theirs")),
        case("other-weights-loaded-without-a-version", partial(loaded_meanwhile, None)),
    ]


def _dying() -> list[Case]:
    def dead(scene: Scene) -> Ended:
        scene.server.stop()
        return scene.start().ended(PATIENCE)

    def dies(after: int, away: float | None, scene: Scene) -> Ended:
        """Stop the server after some requests, and restart it after some seconds, if at all."""
        running = scene.start()
        scene.expect(scene.server.when_asked(after), "the server was not asked so often")
        scene.server.stop()
        if away is not None:
            time.sleep(away)
            scene.server.start()
        return running.ended(PATIENCE)

    def dies_often(scene: Scene) -> Ended:
        running = scene.start()
        for after in (40, 90, 140):
            scene.server.when_asked(after)
            scene.server.stop()
            time.sleep(1)
            scene.server.start()
        return running.ended(PATIENCE)

    return [
        disturbed("failing servers", "dead-from-the-start", SERVED, dead, FAILED, names_server=True),
        disturbed("failing servers", "dies-for-good", SERVED, partial(dies, 60, None), FAILED, names_server=True),
        disturbed("failing servers", "dies-and-is-back-soon", SERVED, partial(dies, 60, 3), {0}),
        disturbed("failing servers", "dies-three-times", SERVED, dies_often, {0}),
        disturbed("failing servers", "dies-and-is-back-late", PATIENT, partial(dies, 60, 30), {0, 1}),
    ]
