"""SGLang's native HTTP API as an engine: token ids in, token ids and log-probs out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from selfplay_pipeline.core.checkpoints import weight_files
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.client import Client, retrying
from selfplay_pipeline.engines.http import LONGEST_ANSWER, RetriableError
from selfplay_pipeline.engines.routing import Routing
from selfplay_pipeline.engines.server_lock import ServerLocks
from selfplay_pipeline.engines.sglang_api import completion_of, partial_of, request_of
from selfplay_pipeline.engines.types import Completion, EngineError, FinishReason, SamplingParams
from selfplay_pipeline.engines.watchdog import Server

T = TypeVar("T")


class SGLangEngine:
    """Engine with one or more servers, each with one or more copies of the model.

    An episode stays at one copy (`Routing`). If a server is gone, its requests go to another server with the tokens
    sampled so far. If there is no other server, they wait until it is back.
    """

    def __init__(
        self,
        servers: Sequence[str | Server],
        *,
        key: str = "",
        request_timeout: float = 600,
        hang_timeout: float | None = None,
        attempts: int = 6,
        vocabulary: int | None = None,
        locks: ServerLocks | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Args:
        servers: Servers, or their addresses. The engine does not wait for a server given by address after the last
            attempt.
        key: Key sent to servers given by address; empty if they need none.
        request_timeout: Seconds for one completion.
        hang_timeout: Seconds without a sign of life after which a server counts as hung; None leaves hangs to
            `request_timeout`.
        attempts: Number of times that a request is sent before it fails; pauses double from 0.5 s to 8 s.
        vocabulary: Size of the model's vocabulary; answers with other token ids are refused.
        locks: Locks on servers that other commands may use; released when the engine is closed.
        tell: Takes one-line status messages, for example that a server hangs or gets other weights.
        """
        known = [AttachedServer(server, key=key) if isinstance(server, str) else server for server in servers]
        self.clients = [Client(server, request_timeout, hang_timeout, attempts, tell) for server in known]
        self._routing, self._attempts = Routing(self.clients), attempts
        self.vocabulary = vocabulary
        self._locks, self._tell = locks or ServerLocks([], tell), tell

    @property
    def urls(self) -> list[str]:
        return [client.url for client in self.clients]

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        async def completion(client: Client, answer: dict[str, Any]) -> Completion:
            done = completion_of(answer, params, len(prompt_ids), f"{client.url}/generate", self.vocabulary)
            await client.check(answer)
            if done.finish_reason is FinishReason.ABORT:  # SGLang aborts all requests before it loads weights
                raise RetriableError(f"{client.url}/generate broke the request off")
            return done

        return await self._answer(request_of(prompt_ids, params), session, completion)

    async def generate_until_aborted(
        self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = ""
    ) -> Completion:
        """Sample one completion as `generate` does; after `abort` it has the tokens sampled so far, or none."""

        async def completion(client: Client, answer: dict[str, Any]) -> Completion:
            done = partial_of(answer, params, len(prompt_ids), f"{client.url}/generate", self.vocabulary)
            await client.check(answer)
            return done

        return await self._answer(request_of(prompt_ids, params), session, completion)

    async def abort(self) -> None:
        """Abort all requests; returns before they have ended."""
        await asyncio.gather(*(client.call("/abort_request", {"abort_all": True}) for client in self.clients))

    async def ask(
        self,
        request: dict[str, Any],
        session: str = "",
        headers: Mapping[str, str] | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> dict[str, Any]:
        """Send a complete `/generate` request and return the whole answer, a JSON object with any fields.

        Args:
            headers: HTTP headers for routers.
            longest: Largest size of the answer in bytes.

        Raises:
            EngineError: No attempt got an answer.
        """

        async def whole(client: Client, answer: dict[str, Any]) -> dict[str, Any]:
            return answer

        return await self._answer(request, session, whole, headers, longest)

    async def _answer(
        self,
        request: dict[str, Any],
        session: str,
        read: Callable[[Client, dict[str, Any]], Awaitable[T]],
        headers: Mapping[str, str] | None = None,
        longest: int = LONGEST_ANSWER,
    ) -> T:
        copy = None
        async for attempt in retrying(self._attempts):
            with attempt:
                copy = await self._routing.of(session, failed=copy)
                with copy.asked():
                    routed = request | copy.client.route(copy.rank)
                    answer = await copy.client.generate(routed, headers, longest)
                return await read(copy.client, answer)
        raise AssertionError("unreachable")

    async def serve(self, model: str, *, alone: bool = False) -> None:
        """Make every server use a model's weights; loads them only on servers that lack them.

        Args:
            alone: Whether no other command may use the servers until this engine is closed.

        Raises:
            EngineError: A server could not load the weights.
            UserError: A server does not answer, is in use by another command, needs another key, or serves another hub
                model.
        """
        await self._locks.take(alone=alone)
        try:
            lacking = [client.url for client in self.clients if not await client.find(model, attempts=1)]
        except EngineError as error:
            raise UserError(f"{error}; is an SGLang server running there?") from None
        if not lacking:
            await asyncio.gather(*(client.go_on() for client in self.clients))
            return
        self._tell(f"loading {model} into {', '.join(lacking)}")
        await self.reload(Path(model))
        if not alone:
            await self._locks.take(alone=False)

    async def reload(self, checkpoint: Path) -> None:
        """Make every server use a checkpoint's weights, and check that it does.

        Locks the servers for this command. If one of several servers is gone, the others continue, and
        it loads the weights when it is back.

        Raises:
            EngineError: A server refused or answers with other weights, or all servers are gone for good.
            UserError: A server is in use by another command.
        """
        try:
            weight_files(checkpoint)
        except UserError as error:
            raise EngineError(f"{error} (it was to be loaded into {', '.join(self.urls)})") from None
        await self._locks.take(alone=True)
        self._routing.forget()
        await asyncio.gather(*(client.serve(str(checkpoint.resolve())) for client in self.clients))
        await self._routing.available()

    async def find_ranks(self) -> None:
        """Ask each server for its number of model copies; without this, each server counts as one copy.

        Raises:
            EngineError: A server does not answer.
        """
        await asyncio.gather(*(client.find_ranks() for client in self.clients))

    async def release(self) -> None:
        for client in self.clients:
            if client.server.ours or client.saves_memory:
                await client.release()

    async def close(self) -> None:
        for client in self.clients:
            await client.close()
        self._locks.release()

    async def __aenter__(self) -> SGLangEngine:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
