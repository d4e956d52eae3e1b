"""SGLang's native HTTP API as an engine: token ids in, token ids and log-probs out."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tenacity import AsyncRetrying, RetryError, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from selfplay_pipeline.engines.types import NEUTRAL, Completion, EngineError, SamplingParams, finish_reason
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.keys import SERVER_KEY, redacted

PROBE = SamplingParams(temperature=0.0, max_new_tokens=1, stop_token_ids=())


UNGUIDED: dict[str, Any] = NEUTRAL | {
    "stop": None,
    "stop_regex": None,
    "min_new_tokens": 0,
    "n": 1,
    "json_schema": None,
    "regex": None,
    "ebnf": None,
    "structural_tag": None,
    "ignore_eos": False,
    "custom_params": None,
    "logit_bias": None,
    "sampling_seed": None,
}
"""All that SGLang could do to a distribution or to where sampling stops, left undone: what a request does not say, the
server takes from its `--preferred-sampling-params`."""


class _Retriable(Exception):
    """The request may succeed when sent again."""


class SGLangEngine:
    """One or many servers. Requests of one session go to one server, where its prefix is cached."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        key: str = "",
        request_timeout: float = 600,
        attempts: int = 6,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        """Args:
        urls: the servers' addresses.
        key: sent with each request; empty for servers that ask for none.
        request_timeout: seconds for one completion.
        attempts: how often a request is sent before it fails; waits double from 0.5 s to 8 s.
        alive: whether a server that we launched still runs; when it does not, waiting is pointless.
        """
        self.urls = [url.rstrip("/") for url in urls]
        self._key = key
        self.request_timeout = request_timeout
        self.attempts = attempts
        self.alive = alive
        self._session: aiohttp.ClientSession | None = None

    @property
    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.request_timeout),
                connector=aiohttp.TCPConnector(limit=0),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            )
        return self._session

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        return completion_of(await self.ask(_request(prompt_ids, params), session), params)

    async def ask(
        self, request: dict[str, Any], session: str = "", headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Send a whole request of `/generate` and return the whole answer.

        Args:
            headers: for routers.

        Raises:
            EngineError: no answer after all retries.
        """
        url = self.urls[zlib.crc32(session.encode()) % len(self.urls)]
        return await self._post(url, "/generate", request, headers)

    async def served_models(self) -> list[str]:
        """What each server says it serves.

        Raises:
            EngineError: a server does not answer.
        """
        return [str((await self._post(url, "/model_info", None))["model_path"]) for url in self.urls]

    async def reload(self, checkpoint: Path) -> None:
        """Load a checkpoint's weights from disk into every server, and prove that they answer.

        Raises:
            EngineError: a server refused, or answers with other weights.
        """
        for url in self.urls:
            await self._reload_one(url, checkpoint.resolve())

    async def _reload_one(self, url: str, checkpoint: Path) -> None:
        weights = sorted(checkpoint.glob("*.safetensors"))
        if not weights:
            raise EngineError(f"{checkpoint} holds no *.safetensors to load into {url}")
        version = f"{checkpoint}@{max(path.stat().st_mtime_ns for path in weights)}"
        await self._post(url, "/pause_generation", {})
        try:
            # With flush_cache=true SGLang 0.5.12 can die of an assertion, so the cache is flushed on its own.
            update = {"model_path": str(checkpoint), "flush_cache": False, "weight_version": version}
            answer = await self._post(url, "/update_weights_from_disk", update)
            if not answer.get("success", False):
                raise EngineError(f"{url} could not load {checkpoint}: {answer.get('message')}")
            await self._post(url, "/flush_cache?timeout=60", {})
        finally:
            await self._post(url, "/continue_generation", {})
        probe = await self._post(url, "/generate", _request([0, 1, 2], PROBE))
        meta = probe["meta_info"]
        if meta.get("weight_version") != version or meta.get("cached_tokens", 0) != 0:
            raise EngineError(f"{url} still answers with weights {meta.get('weight_version')!r}, not {version!r}")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, url: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
        """POST (GET without a body), again and again with growing pauses while the server is away.

        Raises:
            EngineError: all attempts failed, or the server refused the request.
            UserError: the server asks for another key.
        """
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Retriable),
            stop=stop_after_attempt(self.attempts),
            wait=wait_exponential_jitter(initial=0.5, max=8),
        )
        try:
            async for attempt in retrying:
                with attempt:
                    return await self._send(url, path, body, headers)
        except RetryError as error:
            raise EngineError(f"{url}{path}: {error.last_attempt.exception()}") from None
        raise AssertionError("unreachable")

    async def _send(self, url: str, path: str, body: Any, headers: Mapping[str, str] | None) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        try:
            async with self._http.request(method, url + path, json=body, headers=headers) as response:
                if response.status >= 500 or response.status in (408, 429):
                    raise _Retriable(f"answered {response.status}")
                if response.status in (401, 403):
                    refuses = f"refuses the key in {SERVER_KEY}" if self._key else "asks for a key"
                    raise UserError(f"{url} {refuses}; set the environment variable {SERVER_KEY} to the server's key")
                if response.status >= 400:
                    text = redacted(await response.text(), self._key)[:300]
                    raise EngineError(f"{url}{path} answered {response.status}: {text}")
                answer = await _json_object(response) if response.content_type == "application/json" else {}
                if path == "/generate" and "meta_info" not in answer:
                    raise _Retriable("answered without meta_info")
                return answer
        except (aiohttp.ClientError, TimeoutError) as error:
            if not self.alive():
                raise EngineError(f"{url}{path}: the server has ended") from None
            raise _Retriable(f"{type(error).__name__} {error}".strip()) from None


async def _json_object(response: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        answer = await response.json()
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        raise _Retriable("answered with what is no JSON object")
    return answer


def _request(prompt_ids: Sequence[int], params: SamplingParams) -> dict[str, Any]:
    sampling = UNGUIDED | {
        "temperature": params.temperature,
        "max_new_tokens": params.max_new_tokens,
        "stop_token_ids": list(params.stop_token_ids),
        "sampling_seed": params.seed,
    }
    return {"input_ids": list(prompt_ids), "sampling_params": sampling, "return_logprob": True}


def completion_of(answer: dict[str, Any], params: SamplingParams) -> Completion:
    """The sampled tokens of an answer of `/generate`.

    Raises:
        EngineError: the log-probs are of other tokens.
    """
    meta = answer["meta_info"]
    token_ids, logprobs = list(answer["output_ids"]), meta["output_token_logprobs"]
    if [entry[1] for entry in logprobs] != token_ids:
        raise EngineError("the server's log-probs belong to other tokens than its output_ids")
    return Completion(
        token_ids=token_ids,
        logprobs=[float(entry[0]) for entry in logprobs],
        finish_reason=finish_reason((meta["finish_reason"] or {}).get("type", "abort"), token_ids, params),
        prompt_tokens=meta["prompt_tokens"],
        cached_tokens=meta["cached_tokens"],
    )
