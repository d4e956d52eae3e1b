"""Client of one SGLang server: retries, loading of weights, and recovery when the server is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from selfplay_pipeline.core.content_hash import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.architecture import differences
from selfplay_pipeline.engines.http import (
    LONGEST_ANSWER,
    Http,
    RefusedError,
    RetriableError,
    ServerGoneError,
    UnknownPathError,
)
from selfplay_pipeline.engines.sglang_api import (
    PROBE,
    PROBE_IDS,
    RELEASED,
    WITHOUT_WEIGHTS,
    ModelInfo,
    ServerInfo,
    Updated,
    completion_of,
    read,
    request_of,
)
from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.engines.watchdog import Server, Watchdog


class Client:
    """Client of one server, with a watchdog for hangs."""

    def __init__(
        self,
        server: Server,
        request_timeout: float,
        hang_timeout: float | None,
        attempts: int,
        tell: Callable[[str], None],
    ) -> None:
        """Args:
        hang_timeout: Seconds without a sign of life after which the server counts as hung; None leaves hangs to
            `request_timeout`.
        attempts: Number of times that `call` sends a request that fails with a transient error; see `retrying`.
        tell: Takes one-line status messages, for example that the server hangs.
        """
        self.server = server
        self.weights: str | None = None
        """Version of the weights that each answer must name; None if any version is accepted."""
        self.ranks = 1
        """Number of copies of the model on the server (SGLang's `dp_size`); 1 until the server has been asked."""
        self.saves_memory: bool = False
        """Whether the server can release its GPU memory; False until the server has been asked."""
        self.returning: asyncio.Task[None] | None = None
        """Task that waits for a server that is gone; else None."""
        self.lost: EngineError | UserError | None = None
        """Error that ended the last reconnect."""
        self.meanwhile: Callable[[], str] = lambda: ""
        """Returns a message about the work that continues while the server is gone; empty if all work waits."""
        self._attempts, self._tell = attempts, tell
        self._http = Http(request_timeout, server.key)
        self._watchdog = Watchdog(server, self._http, hang_timeout, lambda: self.returning is not None, tell)
        self._life = 0
        self._gone = ""
        self._released = False
        """True while the server has released its GPU memory and must not compute."""
        self._releasing: asyncio.Task[None] | None = None
        """Last release of the memory, which goes on if the command is stopped meanwhile."""
        self._unconfirmed = self._confirmed = 0
        """Number of all answers, and number of answers that preceded the last confirmation that the server still serves
        the model.
        """
        self._confirming = asyncio.Lock()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def available(self) -> bool:
        """Whether the server is available: no reconnect is under way, and the last one did not fail."""
        return self.returning is None and self.lost is None

    async def generate(
        self, body: dict[str, Any], headers: Mapping[str, str] | None = None, longest: int = LONGEST_ANSWER
    ) -> dict[str, Any]:
        """Send one POST request to `/generate`, without retries, and return the answer.

        If the server is gone, begin to wait for it.

        Raises:
            ServerGoneError: The connection failed or broke.
            RetriableError: The request may succeed when it is sent again.
            EngineError: The request was refused or not answered in time.
        """
        assert not self._released, f"{self.url} has no weights: it was not reloaded after it was released"
        life = self._life
        # This check samples a token through the scheduler; SGLang 0.5.12 can die of it while it loads weights.
        async with self._watchdog.watching("/health_generate"):
            try:
                answer = await self._http.send(f"{self.url}/generate", body, headers, longest=longest)
            except ServerGoneError as error:
                self._leave(life, str(error))
                raise
        if "meta_info" not in answer:  # a proxy answered for a server that is not ready
            raise RetriableError(f"{self.url}/generate answered without meta_info")
        self._watchdog.answers += 1
        return answer

    async def call(self, path: str, body: Any = None, *, attempts: int | None = None) -> dict[str, Any]:
        """Send a POST request, or a GET request without a body, and return the answer; retry after transient errors.

        Raises:
            ServerGoneError: The connection failed or broke.
            EngineError: The server refused the request, or all attempts failed.
        """
        async for attempt in retrying(attempts or self._attempts):
            with attempt:
                return await self._http.send(f"{self.url}{path}", body)
        raise AssertionError("unreachable")

    async def info(self, *, attempts: int | None = None) -> ModelInfo:
        """Returns the model and the version of its weights, as the server reports them.

        Raises:
            EngineError: The server does not answer, or its answer is invalid.
        """
        return read(ModelInfo, await self.call("/model_info", attempts=attempts), f"{self.url}/model_info")

    def route(self, rank: int) -> dict[str, int]:
        """Returns the request fields that select a copy of the model; empty for a single copy, because SGLang would log
        a warning.
        """
        return {"routed_dp_rank": rank} if self.ranks > 1 else {}

    async def find_ranks(self) -> None:
        """Ask the server for its number of model copies, and whether it can release its GPU memory.

        A gateway that does not report them counts as one copy that cannot.

        Raises:
            EngineError: The server does not answer, or its answer is invalid.
        """
        try:
            info = read(ServerInfo, await self.call("/server_info"), f"{self.url}/server_info")
        except RefusedError:
            info = ServerInfo()
        self.ranks, self.saves_memory = info.dp_size, info.enable_memory_saver

    async def go_on(self) -> None:
        """Let the server generate again; a command that was killed while loading weights leaves it paused."""
        with suppress(EngineError):  # of a gateway, which cannot be paused either
            await self.call("/continue_generation", {}, attempts=1)

    async def find(self, model: str, *, attempts: int | None = None) -> bool:
        """Returns whether the server reports a model's weights; if so, each later answer must name their version.

        A hub model cannot be loaded into the server. For such a model the name decides, and each answer must name the
        version that the server reports.

        Raises:
            EngineError: The server does not answer, or its answer is invalid.
            UserError: The model is a hub model and the server serves another one or has released its weights, or the
                server needs another key.
        """
        info = await self.info(attempts=attempts)
        await self.find_ranks()
        if info.weight_version == WITHOUT_WEIGHTS:  # the command that released them was killed
            self._released = True
            if not Path(model).is_dir():
                raise UserError(f"{self.url} has released its weights; start it again, or give the model as a folder")
        same = self.server.ours or same_model(info.model_path, model)
        found = same and info.weight_version == await asyncio.to_thread(version_of, model)
        if not found and not Path(model).is_dir():
            if not same:
                raise UserError(f"{self.url} serves {info.model_path:.200}, not {model}; start it with that model")
            self._trust(info)
            found = True
        if found:
            self.server.model, self.weights = model, info.weight_version
        return found

    async def check(self, answer: Mapping[str, Any]) -> None:
        """Raises EngineError unless an answer was sampled with the expected weights.

        A program that loads weights without a version leaves the previous version in place. So after the answer, a
        server that other programs can reach is also asked for its model. One such request confirms all earlier
        answers. If the server does not answer it, the client begins to wait for the server and raises
        ServerGoneError.
        """
        if self.weights is None:
            return
        found = answer["meta_info"].get("weight_version")
        if found != self.weights:
            raise self._other_weights(found)
        if self.server.ours:
            return
        self._unconfirmed += 1
        mine, life = self._unconfirmed, self._life
        async with self._watchdog.watching("/health_generate"), self._confirming:
            if self._confirmed >= mine:
                return
            if not self.available or self._life != life:
                raise ServerGoneError(self._gone)
            all_so_far = self._unconfirmed
            try:
                info = await self.info(attempts=1)
            except ServerGoneError as error:
                self._leave(life, str(error))
                raise
            if info.weight_version != self.weights or not same_model(info.model_path, self.server.model):
                raise self._other_weights(f"{info.weight_version} of {info.model_path}")
            self._confirmed = all_so_far

    async def serve(self, model: str) -> None:
        """Make the server use a model's weights, and check that it does; loads them only if necessary.

        If the server is gone, begin to wait for it; it gets the weights when it is back. No request may be under way.

        Raises:
            EngineError: The server refused, or answers with other weights.
            UserError: The model is a hub model, and the server serves another one.
        """
        await self._stop_waiting()
        before = self.server.model, self.weights
        self.server.model, self.weights = model, None
        async with self._watchdog.watching_work():
            life = self._life
            try:
                await self._bring(model)
            except ServerGoneError as error:
                if self._released:  # only a restarted server has all its memory
                    await self.server.end()
                    self._released = False
                self._leave(life, str(error))
            except (EngineError, UserError):
                self.server.model, self.weights = before
                raise
            else:
                self.lost = None

    async def release(self) -> None:
        """Make the server release its GPU memory until the next `reload`. No request may be under way.

        A launched server that fails to release it is ended, which frees the memory too; `reload` restarts the server.

        Raises:
            EngineError: An attached server did not release it.
        """
        async with self._watchdog.watching_work():
            try:
                await self.call("/pause_generation", {}, attempts=3)
                # Returns once the scheduler is idle, which SGLang asserts before it releases memory.
                await self.call("/flush_cache?timeout=60", {})
                self._releasing = asyncio.create_task(self._let_go())
                await asyncio.shield(self._releasing)  # a server whose memory is gone must say so
            except EngineError as error:
                if not self.server.ours:
                    raise EngineError(
                        f"{error}; the server did not release the GPU memory that the trainer needs: start it again, "
                        "or without --enable-memory-saver on GPUs of its own"
                    ) from None
                self._tell(f"{self.url} is stopped, because it did not release its memory: {error}")
                await self.server.end()

    async def _let_go(self) -> None:
        await self.call("/release_memory_occupation", RELEASED, attempts=1)
        self._released = True
        if not self.server.ours:
            await self.call("/update_weight_version", {"new_version": WITHOUT_WEIGHTS, "abort_all_requests": False})

    async def returned(self) -> None:
        """Wait until the server is back or the wait has failed; if an earlier wait failed, try once more.

        Raises:
            EngineError: The server did not come back, or it came back with another model.
            UserError: The server came back and needs another key.
        """
        if self.lost is not None and self.returning is None:
            self._leave(self._life, self._gone)
        if self.returning is not None:
            await asyncio.wait([self.returning])
        if self.lost is not None:
            raise self.lost

    async def close(self) -> None:
        """Close the connections; an attached server that has released its memory gets it and its last weights back."""
        await self._stop_waiting()
        if self._releasing is not None:
            await asyncio.gather(self._releasing, return_exceptions=True)
        if self._released and not self.server.ours and self.server.model:
            try:
                await self._load(Path(self.server.model))
            except (EngineError, UserError) as error:
                self._tell(f"{self.url} stays without weights until a command loads some: {error}")
        await self._http.close()

    async def _take_back(self) -> None:
        """Make a released server allocate its GPU memory again; the contents are loaded later.

        Raises:
            ServerGoneError: The server did not get all of its memory, so it cannot be used.
        """
        if not self._released:
            return
        try:
            await self.call("/resume_memory_occupation", RELEASED, attempts=1)  # a second time would kill it
        except EngineError as error:
            raise ServerGoneError(str(error)) from None
        self._released = False

    async def _bring(self, model: str) -> None:
        if not self._released and await self.find(model, attempts=3):
            return
        if not self.server.ours:
            await self._check_architecture(model)
        try:
            await self._load(Path(model))
        except UnknownPathError:
            info = await self.info()
            if not same_model(info.model_path, model):
                raise
            self._trust(info)

    async def _check_architecture(self, model: str) -> None:
        """Raises UserError if the server serves a model of another architecture, as far as its files are known here."""
        serving = (await self.info(attempts=3)).model_path
        found = await asyncio.to_thread(differences, serving, model)
        if found:
            raise UserError(
                f"{self.url} serves {serving:.200}, and {model} differs from it in {', '.join(found[:4])} of "
                "config.json, which a running server keeps; start the server with that model"
            )

    async def _load(self, checkpoint: Path) -> None:
        # Hashed before and after loading: files that change meanwhile would be served under a wrong version.
        version = await asyncio.to_thread(content_hash, str(checkpoint))
        await self.call("/pause_generation", {}, attempts=3)
        try:
            await self._take_back()
            # With flush_cache=true SGLang 0.5.12 can die of an assertion, so the cache is flushed on its own.
            # The server may have another working directory.
            update = {"model_path": str(checkpoint.resolve()), "flush_cache": False, "weight_version": version}
            path = "/update_weights_from_disk"
            answer = read(Updated, await self.call(path, update, attempts=3), f"{self.url}{path}")
            if not answer.success:
                raise EngineError(f"{self.url} could not load {checkpoint}: {answer.message}")
            await self.call("/flush_cache?timeout=60", {})
        finally:
            await self.call("/continue_generation", {}, attempts=3)
        for rank in range(self.ranks):
            # Each rank has its own copy and cache, which may still hold keys and values of the old weights.
            probe = await self.call("/generate", request_of(PROBE_IDS, PROBE) | self.route(rank))
            said = completion_of(probe, PROBE, len(PROBE_IDS), f"{self.url}/generate")
            found = probe["meta_info"].get("weight_version")
            if found != version or said.cached_tokens != 0:
                raise EngineError(f"{self.url} still answers with weights {found!r:.200}, not {version!r}")
        if await asyncio.to_thread(content_hash, str(checkpoint)) != version:
            raise EngineError(f"{checkpoint} was changed while {self.url} loaded it; give the same command again")
        self.weights = version

    def _trust(self, info: ModelInfo) -> None:
        self.weights = info.weight_version
        self._tell(
            f"{self.url} says that it serves {info.model_path:.200}, version {info.weight_version!r:.200}; "
            "which files it has loaded cannot be checked"
        )

    def _other_weights(self, found: object) -> EngineError:
        return EngineError(
            f"{self.url} answers with weights {found!s:.300}, not {self.weights} of {self.server.model}: another "
            "program has loaded them into this server; wait until it ends or use another server, and give the same "
            "command again"
        )

    def _leave(self, life: int, reason: str) -> None:
        """Begin to wait for a server that is gone; all requests share one wait.

        Does nothing if a wait is under way, or if the server has come back since the failed request was sent.

        Args:
            life: Number of times that the server had come back when the request was sent.
            reason: Error of the request.
        """
        if self._life == life and self.returning is None:
            self._gone = self._watchdog.hung or reason
            self.returning = asyncio.create_task(self._return(self.meanwhile()))

    async def _return(self, meanwhile: str) -> None:
        """Wait for the server to restart or come back, and make it serve the same weights as before.

        Args:
            meanwhile: Message about the work that continues in the meantime; empty if all work waits.
        """
        try:
            await self.server.come_back("; ".join(filter(None, [self._gone, meanwhile])))
            if self.server.model:
                before = self.weights
                await self._bring(self.server.model)
                found, self.weights = self.weights, before or self.weights
                if found != self.weights:
                    raise EngineError(
                        f"{self.url} came back with weights {found}, not {before}: {self.server.model} was changed "
                        "meanwhile; use another --output, or put back the model that was there"
                    )
        except (EngineError, UserError) as error:
            self.lost = error
            if meanwhile:
                self._tell(str(error))
        else:
            self.lost, self._watchdog.hung = None, ""
            self._life += 1
        finally:
            self.returning = None

    async def _stop_waiting(self) -> None:
        if self.returning is not None:
            self.returning.cancel()
            await asyncio.wait([self.returning])


def retrying(attempts: int) -> AsyncRetrying:
    """Returns a retry loop for errors that may pass; its pauses double from 0.5 s to 8 s."""
    return AsyncRetrying(
        retry=retry_if_exception_type((RetriableError, ServerGoneError)),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential_jitter(initial=0.5, max=8),
        reraise=True,
    )


def version_of(model: str) -> str:
    """Returns the version that servers report for a model's weights: the hash of a folder, or a hub model's name.

    Raises:
        UserError: The folder cannot be read.
    """
    return content_hash(model) if Path(model).is_dir() else model


def same_model(first: str, second: str) -> bool:
    """Whether two names mean one model: they are equal, or lead to one folder."""
    if first == second:
        return True
    try:
        return Path(first).samefile(second)
    except (OSError, ValueError):  # a server may report any text
        return False
