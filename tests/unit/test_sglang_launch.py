"""The key of a server that is launched."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.server_keys import SERVER_KEY, key_from_environment, redacted
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_launch import Unprinted
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer


def test_the_key_of_a_server_is_on_no_command_line_and_in_no_log():
    spec = ServerSpec(model="data/tiny_model", device="cpu", log_path=Path("log"))
    first, second = SGLangServer(spec), SGLangServer(spec)
    assert len(first.key) >= 32
    assert first.key != second.key
    assert first.key not in " ".join(spec.command(1))
    assert first.key not in f"{[Unprinted(first.key)]}", "SGLang logs its arguments as a whole"
    assert first.key in f"Bearer {Unprinted(first.key)}"


def answer(key: str, engine_key: str) -> tuple[dict, int]:
    """What an engine gets from a server that asks for a key, and how many requests it sent."""
    seen = []

    async def model_info(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization", ""))
        if seen[-1] != f"Bearer {key}":
            return web.json_response({"error": f"Unauthorized: {seen[-1]}"}, status=401)
        return web.json_response({"model_path": "m"})

    async def ask() -> dict:
        app = web.Application()
        app.router.add_get("/model_info", model_info)
        async with TestServer(app) as server:
            engine = SGLangEngine([str(server.make_url("/"))], key=engine_key)
            try:
                return {"models": [(await engine.clients[0].info()).model_path]}
            except UserError as error:
                return {"error": str(error)}
            finally:
                await engine.close()

    return asyncio.run(ask()), len(seen)


@pytest.mark.parametrize("brought", ["a-long-key", "", "another-key"])
def test_a_server_answers_those_who_bring_its_key_and_a_wrong_one_is_said_at_once_and_not_repeated(brought):
    result, requests = answer("a-long-key", brought)
    assert requests == 1
    if brought == "a-long-key":
        assert result == {"models": ["m"]}
    else:
        assert ("refuses the key" if brought else "asks for a key") in result["error"]
        assert not brought or brought not in result["error"]


def test_what_cannot_be_a_key_is_refused_without_showing_it(monkeypatch):
    monkeypatch.setenv(SERVER_KEY, "two words")
    with pytest.raises(UserError, match="SGLANG_API_KEY: not a key") as error:
        key_from_environment(SERVER_KEY)
    assert "two" not in str(error.value)
    assert redacted("you sent 0123456789", "0123456789") == "you sent [key]"
