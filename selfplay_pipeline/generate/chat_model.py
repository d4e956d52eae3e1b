"""Client of an OpenAI-compatible endpoint with timeouts, retries, a request cap, a cache and usage counts."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Annotated, Any
from weakref import WeakValueDictionary

from pydantic import BaseModel, Field, ValidationError
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from selfplay_pipeline.config.partner import PartnerConfig
from selfplay_pipeline.core.addresses import is_this_machine
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.files import explain
from selfplay_pipeline.core.server_keys import redacted
from selfplay_pipeline.core.terminal.harmless import harmless
from selfplay_pipeline.engines.http import LONGEST_ANSWER
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.generate.chat_cache import AnswerCache, cache_key
from selfplay_pipeline.generate.episode import Reply
from selfplay_pipeline.generate.records import PartnerUsage
from selfplay_pipeline.generate.text_player import Message

if TYPE_CHECKING:
    import httpx
    from openai import AsyncOpenAI

MAX_RETRIES = 6
"""Number of retries of a request after a failure that may pass; pauses double from about a second."""
LONGEST_PAUSE = 120.0
"""Longest pause before a retry, in seconds. A request fails if the server asks for a longer one."""


UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""Headers of every request. Compressed answers are not accepted, because a small one can need much memory."""
FINISHED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence", "tool_calls", "function_call", "none"})
"""Finish reasons of a whole answer, in lower case. Some servers give none, or the name of another API."""
CUT_OFF = frozenset({"length", "max_tokens", "model_length"})
"""Finish reasons of an answer that reached the token limit, in lower case."""
OTHER_LIMIT = "max_completion_tokens"
"""Name of the token limit that some endpoints take in place of `max_tokens`."""
ASKS_FOR_OTHER_LIMIT = re.compile(
    rf"\buse\b[^.;]*\b{OTHER_LIMIT}|{OTHER_LIMIT}\W.*\b(instead|in place) of\b", re.IGNORECASE
)
PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})
"""Variables with the proxies to use, in lower case."""
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables with the authorities to trust, in the order in which httpx reads them."""


class PartnerError(EngineError):
    """The chat model gave no usable answer after all retries. One episode is lost."""


CONTINUES = "everything played is kept, and the same command with a higher number continues"


class RequestCapError(UserError):
    """The command has reached its cap on requests or dollars, or cannot keep it.

    Attributes:
        limit: The cap and what became of it, without what to do then.
    """

    def __init__(self, limit: str, then: str = CONTINUES) -> None:
        super().__init__(limit, then)  # the arguments with which a process of Ray makes a copy of the error
        self.limit = limit

    def __str__(self) -> str:
        return "; ".join(self.args)


class ChatClient:
    """Client of the endpoint for one command. The key is removed from every text that the client returns or raises."""

    def __init__(self, config: PartnerConfig, *, first_pause: float = 1.0) -> None:
        """Read the key and open the cache; connections are opened by the first request.

        Args:
            config: Section `partner` of the configuration.
            first_pause: Pause before the first retry, in seconds, plus a random jitter of up to the same length. The
                pause doubles with each retry.

        Raises:
            UserError: The key is missing, or the address, a proxy, the certificates or the cache cannot be used.
        """
        self.config = config
        self.endpoint = config.endpoint
        self._limit = "max_tokens"
        self.total = PartnerUsage()
        """Usage summed over all requests of the client."""
        self._key = config.key()
        # Opened here, so that what the environment spoils is said before anything is played.
        self._http: httpx.AsyncClient | None = _connections(self.endpoint)
        self._openai: AsyncOpenAI | None = None
        self._cache = AnswerCache(config.cache) if config.cache is not None else None
        self._asking = WeakValueDictionary[str, asyncio.Lock]()
        self._slots = asyncio.Semaphore(config.max_concurrency)
        self._backoff = wait_exponential_jitter(initial=first_pause, max=LONGEST_PAUSE, jitter=first_pause)

    async def reply(
        self,
        messages: Sequence[Message],
        seed: Sequence[int],
        count: Callable[[PartnerUsage], None] = lambda usage: None,
    ) -> Reply:
        """Returns the model's answer to a conversation.

        Args:
            messages: The conversation.
            seed: Identifies the seat and episode; part of the cache key.
            count: Called with each usage record (a request, an answer's tokens, a cache hit), even if the call fails.

        Raises:
            PartnerError: No usable answer came after all retries.
            RequestCapError: A cap is reached, or cannot be kept.
            UserError: The endpoint refuses every request because of the key, the quota or the model's name.
        """

        def used(usage: PartnerUsage) -> None:
            self.total += usage
            count(usage)

        request = {
            "model": self.config.model,
            "messages": list(messages),
            "temperature": self.config.temperature,
            "max_tokens": self.config.max_tokens,
        }
        if self._cache is None:
            return await self._ask(request, used)
        key = cache_key(endpoint=self.endpoint, seed=list(seed), **request)
        # Sampled and greedy episodes may ask the same at the same time; the second gets the answer of the first.
        asking = self._asking.setdefault(key, asyncio.Lock())
        async with asking:
            answer = self._cache.get(key)
            if answer is not None:
                used(self._hit(self._cache.tokens(key)))
                return answer
            billed = PartnerUsage()

            def bill(usage: PartnerUsage) -> None:
                nonlocal billed
                billed += usage
                used(usage)

            answer = await self._ask(request, bill)
            tokens = billed.prompt_tokens, billed.completion_tokens
            return self._cache.put(key, answer, tokens if any(tokens) else None)

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._openai is not None:
            await self._openai.close()
            self._openai = self._http = None

    @property
    def _connected(self) -> AsyncOpenAI:
        if self._openai is None:
            from openai import AsyncOpenAI

            # These packages log the headers of answers, and a server may echo the key in them. The import comes
            # first because it turns logging on if OPENAI_LOG is set.
            for name in ("openai", "httpx", "httpcore"):
                logging.getLogger(name).setLevel(logging.WARNING)
            # The package's own retries are off: they could not be counted or capped, and would accept a useless
            # answer. Its timeout is off because it restarts with every byte.
            self._openai = AsyncOpenAI(
                api_key=self._key or "none",
                base_url=self.endpoint,
                max_retries=0,
                timeout=None,
                default_headers=UNCOMPRESSED,
                http_client=self._http or _connections(self.endpoint),
            )
        return self._openai

    async def _ask(self, request: dict[str, Any], used: Callable[[PartnerUsage], None]) -> Reply:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Retriable),
            stop=stop_after_attempt(1 + MAX_RETRIES),
            wait=self._pause,
            reraise=True,
        )
        try:
            async for attempt in retrying:
                with attempt:
                    async with self._slots:
                        return await self._send(request, used, again=attempt.retry_state.attempt_number > 1)
        except _Retriable as error:
            raise PartnerError(f"partner at {self.endpoint}: {error}") from None
        raise AssertionError("unreachable")

    def _pause(self, state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked_for = error.retry_after if isinstance(error, _Retriable) else 0.0
        return max(asked_for, self._backoff(state))

    async def _send(self, request: dict[str, Any], used: Callable[[PartnerUsage], None], *, again: bool) -> Reply:
        """Send one request and return the answer.

        Raises:
            _Retriable: The request failed, but a retry may succeed.
        """
        from openai import APIConnectionError, APIStatusError

        most = self.config.max_dollars
        if most is not None and self.total.dollars >= most:
            raise RequestCapError(f"partner: ${self.total.dollars:.2f} of partner.max_dollars {most:g} are spent")
        used(PartnerUsage(requests=1, retries=int(again)))
        limit = self._limit
        sent = {limit if key == "max_tokens" else key: value for key, value in request.items()}
        try:
            async with asyncio.timeout(self.config.timeout):
                raw = await self._connected.chat.completions.with_raw_response.create(**sent)
        except TimeoutError:
            raise _Retriable(f"no answer within {self.config.timeout:g} s") from None
        except APIConnectionError as error:
            if isinstance(error.__cause__, _TooLong):
                raise PartnerError(f"partner at {self.endpoint} {error.__cause__}") from None
            raise _Retriable(f"no connection ({type(error.__cause__ or error).__name__})") from None
        except APIStatusError as error:
            if error.status_code in (400, 422) and limit != OTHER_LIMIT and ASKS_FOR_OTHER_LIMIT.search(_words(error)):
                self._limit = OTHER_LIMIT
                return await self._send(request, used, again=True)
            raise self._explained(error) from None
        return self._read(raw.content, used)

    def _explained(self, error: Any) -> Exception:
        """Returns the exception to raise for an HTTP error status."""
        status, said = error.status_code, self._said(_words(error))
        where = f"partner at {self.endpoint}"
        if 300 <= status < 400:  # a redirect would carry the conversation to a server that nobody named
            to = self._said(error.response.headers.get("Location", "nowhere"))
            return UserError(
                f"{where} redirects to {to!r}; give that address as partner.base_url if it is the right one"
            )
        if status == 401:  # OpenAI quotes parts of the key here
            return UserError(f"{where} refuses the key in OPENAI_API_KEY; set one that it takes")
        if status in (403, 404):
            model = self.config.model
            return UserError(
                f"{where} refuses model {model!r} ({status}: {said}); fix partner.model or partner.base_url"
            )
        if error.code in ("unsupported_parameter", "unsupported_value") and error.param in (
            "temperature",
            "max_tokens",
        ):
            return UserError(
                f"{where} refuses partner.{error.param} ({status}: {said}); set it to what the model takes"
            )
        if error.code == "insufficient_quota":
            return UserError(f"{where}: {said}; everything played is kept, and the same command continues")
        if status not in (408, 409, 429) and status < 500:
            return PartnerError(f"{where} answered {status}: {said}")
        pause = retry_after(error.response.headers)
        if pause > LONGEST_PAUSE:
            return PartnerError(f"{where} answered {status} and asks to wait {pause:.0f} s: {said}")
        return _Retriable(f"answered {status}: {said}", pause)

    def _read(self, body: bytes, used: Callable[[PartnerUsage], None]) -> Reply:
        # An answer is billed whatever its text looks like, so its tokens count before anything else is checked.
        usage = _usage_of(body)
        if usage is not None:
            used(self._priced(usage))
        try:
            answer = _Completion.model_validate_json(body)
        except ValidationError as error:
            raise _Retriable(f"the answer is not a chat completion: {explain(error)}") from None
        if usage is None and self.config.max_dollars is not None:
            raise RequestCapError(
                f"partner at {self.endpoint} reports no tokens, so partner.max_dollars cannot be kept",
                "leave it out",
            )
        text = answer.choices[0].message.text if answer.choices else ""
        reason = (answer.choices[0].finish_reason if answer.choices else None) or "none"
        if reason.lower() in CUT_OFF:  # a model that thinks may spend the limit before it says a word
            return Reply(self._redacted(text), True, "length")
        if not text.strip() or reason.lower() not in FINISHED:
            what = "was broken off" if text else "is empty"
            raise _Retriable(f"the answer {what} (finish reason {self._said(reason)})")
        return Reply(self._redacted(text), False, "stop")

    def _priced(self, usage: _Usage) -> PartnerUsage:
        asked, answered = usage.prompt_tokens, usage.completion_tokens
        return PartnerUsage(prompt_tokens=asked, completion_tokens=answered, dollars=self._price(asked, answered))

    def _hit(self, tokens: tuple[int, int] | None) -> PartnerUsage:
        """Returns the usage of an answer from the cache, given its tokens."""
        if tokens is None:
            return PartnerUsage(cache_hits=1)
        dollars = self._price(*tokens)
        return PartnerUsage(cache_hits=1, counted_hits=1, cached_completion_tokens=tokens[1], cached_dollars=dollars)

    def _price(self, asked: int, answered: int) -> float:
        prices = self.config.prices
        return (asked * prices[0] + answered * prices[1]) / 1e6

    def _said(self, text: str) -> str:
        """Returns the first 200 characters of a server's text on one line, without the key."""
        return harmless(" ".join(self._redacted(text).split())[:200])

    def _redacted(self, text: str) -> str:
        return redacted(text, self._key)


class _Retriable(Exception):
    """A retry of the request may succeed after a pause of at least `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class _TooLong(Exception):
    """The answer exceeds the size limit, or could exceed it once decompressed."""


def _words(error: Any) -> str:
    """Returns the message of an HTTP error status; without one, the status and the whole answer."""
    message = error.body.get("message") if isinstance(error.body, dict) else None
    return str(message or error.message)


def _connections(endpoint: str) -> httpx.AsyncClient:
    """Returns connections to an endpoint: without redirects, and on this machine without a proxy, which would read all.

    Raises:
        UserError: A proxy or the certificates of the environment cannot be used.
    """
    import httpx

    for name in CERTIFICATES:
        if path := os.environ.get(name):
            if not any(map(os.path.exists, path.split(os.pathsep))):
                raise UserError(f"{name}: {path}: No such file or directory; fix or unset this environment variable")
            break
    limits = httpx.Limits(max_connections=None)  # partner.max_concurrency is the limit
    try:
        return httpx.AsyncClient(
            # An explicit transport keeps the certificates of the environment, but not its proxies.
            transport=httpx.AsyncHTTPTransport(limits=limits) if is_this_machine(endpoint) else None,
            limits=limits,
            event_hooks={"response": [_bound]},
        )
    except (ImportError, httpx.InvalidURL, ValueError) as error:
        names = ", ".join(name for name in os.environ if name.lower() in PROXIES)
        raise UserError(
            f"partner at {endpoint}: the proxy settings of the environment ({names}) cannot be used: "
            f"{first_line(error)}; fix or unset them"
        ) from None
    except OSError as error:
        what = f"{name}: {path}" if path else "the certificates of the package certifi"
        raise UserError(f"{what}: {error.strerror or error}") from None


async def _bound(response: httpx.Response) -> None:
    """Make reading the response fail beyond `LONGEST_ANSWER` bytes.

    Raises:
        _TooLong: The response is compressed, so its decompressed size is unknown.
    """
    import httpx

    if (encoding := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise _TooLong(f"answered compressed ({harmless(encoding[:20])}), though only plain answers were asked for")
    assert isinstance(response.stream, httpx.AsyncByteStream)
    whole: httpx.AsyncByteStream = response.stream

    class Bounded(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for part in whole:
                length += len(part)
                if length > LONGEST_ANSWER:
                    raise _TooLong(f"answered with more than {LONGEST_ANSWER >> 20} MiB")
                yield part

        async def aclose(self) -> None:
            await whole.aclose()

    response.stream = Bounded()


class _Part(BaseModel):
    type: str
    text: str | None = None


class _Message(BaseModel):
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        """Text of the message; some servers send it in parts, with thoughts as parts of another type."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content if part.type == "text")
        return self.content or ""


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    """Fields of an answer that are read here, validated because the types of the package `openai` accept any JSON."""

    choices: list[_Choice]


class _Usage(BaseModel):
    prompt_tokens: Annotated[int, Field(ge=0, lt=10**9)]
    completion_tokens: Annotated[int, Field(ge=0, lt=10**9)]


class _Billed(BaseModel):
    usage: _Usage


def _usage_of(body: bytes) -> _Usage | None:
    """Returns the tokens of an answer; None unless it reports both counts, because a budget needs both."""
    try:
        return _Billed.model_validate_json(body).usage
    except ValidationError:
        return None


def retry_after(headers: Any) -> float:
    """Returns the seconds of a Retry-After header: a number or a date (RFC 9110, section 10.2.3); 0 without one."""
    value = headers.get("retry-after", "")
    try:
        date = parsedate_tz(value)
        return max(0.0, mktime_tz(date) - time.time() if date else float(value))
    except (ValueError, OverflowError):
        return 0.0
