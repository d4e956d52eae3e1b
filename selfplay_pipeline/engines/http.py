"""HTTP requests to one server, with an exception for each kind of failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.processes import allow_open_files
from selfplay_pipeline.core.server_keys import SERVER_KEY, redacted
from selfplay_pipeline.core.terminal.harmless import harmless
from selfplay_pipeline.engines.sglang_api import read_object
from selfplay_pipeline.engines.types import EngineError

LONGEST_ANSWER = 16 << 20
"""Largest size of an answer in bytes; a token takes about 50."""
IDLE_SECONDS = 3
"""Seconds after which an idle connection is not reused; SGLang closes it after 5 s, and a request on it would fail."""
NO_JSON = (
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/flush_cache",
    "/health_generate",
    "/release_memory_occupation",
    "/resume_memory_occupation",
)
"""Paths whose response has a status code but no JSON body."""


class ServerGoneError(EngineError):
    """The connection could not be made, or broke."""


class RefusedError(EngineError):
    """The server refused the request."""


class UnknownPathError(RefusedError):
    """The server does not know the path, such as a gateway that cannot load weights."""


class RetriableError(EngineError):
    """The request may succeed when it is sent again."""


class Http:
    """Connections to one server, which the next request opens at the start and after `close`."""

    def __init__(self, timeout: float, key: str = "") -> None:
        """Args:
        timeout: Seconds within which the whole answer must arrive.
        key: Key sent with each request; empty if the server needs none.
        """
        self.timeout = timeout
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> dict[str, Any]:
        """Send a POST request, or a GET request if there is no body, and return the JSON object of the answer.

        Raises:
            ServerGoneError: The connection failed or broke.
            RetriableError: The server is busy, or a proxy answered in its place.
            EngineError: The server refused the request or did not answer in time.
            UserError: The server needs another key.
        """
        method = "GET" if body is None else "POST"
        limit = aiohttp.ClientTimeout(total=timeout or self.timeout)
        try:
            async with self._opened.request(
                method, url, json=body, headers=headers, timeout=limit, allow_redirects=False
            ) as response:
                return await _read(response, url, longest, self._key)
        except TimeoutError:
            raise EngineError(f"{url} gave no answer within {limit.total:g} s") from None
        except aiohttp.ClientConnectionError as error:
            raise ServerGoneError(f"{url}: no connection ({type(error).__name__} {error})".replace(" )", ")")) from None
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, ValueError):  # ValueError: a name is too long
            raise EngineError(f"{url} is not an address such as http://localhost:30000") from None
        except aiohttp.ClientError as error:
            raise RetriableError(f"{url} gave no usable answer ({type(error).__name__} {error!s:.200})") from None

    async def close(self) -> None:
        """Close the connections; requests under way fail like requests to a server that is gone."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @property
    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            allow_open_files()
            key = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            # Without compression, an answer takes no more memory than the bytes that arrive.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_SECONDS),
                headers={"Accept-Encoding": "identity"} | key,
                auto_decompress=False,
            )
        return self._session


async def _read(response: aiohttp.ClientResponse, url: str, longest: int, key: str) -> dict[str, Any]:
    status = response.status
    if 300 <= status < 400:
        raise EngineError(f"{url} redirects to {response.headers.get('Location', 'nowhere')!r:.200}; give that address")
    if status in (401, 403):
        refuses = f"refuses the key in {SERVER_KEY}" if key else "asks for a key"
        raise UserError(f"{url} {refuses}; set the environment variable {SERVER_KEY} to the server's key")
    if status >= 500 or status in (408, 429):
        raise RetriableError(f"{url} answered {status}")
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > longest:
            raise EngineError(f"{url} answered with more than {longest >> 20} MiB")
    if status >= 400:
        refusal = UnknownPathError if status in (404, 405) else RefusedError
        raise refusal(f"{url} answered {status}: {redacted(_words(body), key)}")
    if url.partition("?")[0].endswith(NO_JSON):
        return {}
    try:
        return read_object(bytes(body))
    except ValueError as error:
        what = f"{url} answered with {response.content_type:.60}, not a JSON object ({error!s:.100})"
        raise RetriableError(f"{what}: {redacted(_words(body), key)}") from None


def _words(body: bytes | bytearray) -> str:
    """Returns the beginning of an answer as one line."""
    return harmless(" ".join(bytes(body[:1000]).decode(errors="replace").split())[:300]) or "nothing"
