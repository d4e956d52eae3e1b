"""Which requests go to SGLang's tokenizer manager at once, and that the others arrive as they were sent."""

import asyncio
import json

import pytest

from selfplay_pipeline.engines import sglang_direct
from selfplay_pipeline.engines.requests import PROBE, request_of
from selfplay_pipeline.engines.sglang_direct import Direct


def ask(monkeypatch, body: bytes, path: str = "/generate", method: str = "POST", answer=(200, b'{"a": 1}')):
    """Status and body of the answer to a request that comes in two parts, and who gave it."""
    half = len(body) // 2
    parts = [
        {"type": "http.request", "body": body[:half], "more_body": True},
        {"type": "http.request", "body": body[half:], "more_body": False},
    ]
    sent, seen = [], []

    async def receive():
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    async def directly(request, scope, receive):
        seen.append(("directly", request))
        return answer

    async def sglang(scope, receive, send):
        whole, more = b"", True
        while more:
            message = await receive()
            whole, more = whole + message["body"], message["more_body"]
        seen.append(("sglang", whole, (await receive())["type"]))
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"its own"})

    monkeypatch.setattr(sglang_direct, "_answer", directly)
    asyncio.run(Direct(sglang)({"type": "http", "path": path, "method": method}, receive, send))
    return sent[0]["status"], sent[1]["body"], seen


def test_what_an_engine_asks_for_is_answered_directly(monkeypatch):
    request = request_of([1, 2], PROBE)
    status, body, seen = ask(monkeypatch, json.dumps(request).encode())
    assert (status, body) == (200, b'{"a": 1}')
    assert seen == [("directly", request)]


def test_so_is_what_sglang_refuses(monkeypatch):
    refused = 400, b'{"error": {"message": "too long"}}'
    assert ask(monkeypatch, json.dumps(request_of([1], PROBE)).encode(), answer=refused)[:2] == refused


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(request_of([1], PROBE) | {"stream": True}).encode(),
        json.dumps({"input_ids": [1]}).encode(),
        b"[1, 2]",
        b"no JSON",
    ],
)
def test_all_else_is_sglangs(monkeypatch, body):
    assert ask(monkeypatch, body) == (200, b"its own", [("sglang", body, "http.disconnect")])


@pytest.mark.parametrize(("path", "method"), [("/flush_cache", "POST"), ("/generate", "PUT")])
def test_so_are_other_paths_and_methods(monkeypatch, path, method):
    body = json.dumps(request_of([1], PROBE)).encode()
    assert ask(monkeypatch, body, path, method)[2][0][0] == "sglang"
