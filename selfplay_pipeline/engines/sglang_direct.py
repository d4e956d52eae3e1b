"""Shortcut for an engine's requests through SGLang's HTTP server.

With a small model on a CPU, FastAPI takes longer to read and check a request than all other work of the server's main
process on it. An engine's requests (`engines/requests.py`) have few fields and come from this package, so they go
directly to SGLang's tokenizer manager. Other requests take SGLang's own path. The key has been checked before.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import from_json

REQUEST = {"input_ids", "sampling_params", "return_logprob"}
"""Fields of `request_of`."""
ROUTED = {*REQUEST, "routed_dp_rank"}
"""Fields of a request to one copy of the model."""


class Direct:
    """ASGI middleware that answers an engine's requests to `/generate`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != "/generate" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        messages = [await receive()]
        while messages[-1].get("more_body"):
            messages.append(await receive())
        try:
            request = from_json(b"".join(message.get("body", b"") for message in messages))
        except ValueError:
            request = None
        if isinstance(request, dict) and request.keys() in (REQUEST, ROUTED):
            status, body = await _answer(request, scope, receive)
            await send({"type": "http.response.start", "status": status, "headers": _headers(body)})
            await send({"type": "http.response.body", "body": body})
            return

        async def again() -> Any:
            return messages.pop(0) if messages else await receive()

        await self._app(scope, again, send)


async def _answer(request: dict[str, Any], scope: Any, receive: Any) -> tuple[int, bytes]:
    """Returns status and body as SGLang's own `generate_request` would."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.utils.json_response import dumps_json

    manager = http_server._global_state.tokenizer_manager
    try:
        asked = GenerateReqInput(**request)
        return 200, dumps_json(await anext(manager.generate_request(asked, http_server.Request(scope, receive))))
    except ValueError as error:
        return 400, dumps_json({"error": {"message": str(error)}})


def _headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
