"""The line to one server: requests that are repeated, a watch beside them, and what happens when the server is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential_jitter

from selfplay_pipeline.core.content import content_hash
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.answers import ModelInfo, ServerInfo, Updated, completion_of, read
from selfplay_pipeline.engines.http import (
    LONGEST_ANSWER,
    Http,
    RefusedError,
    RetriableError,
    ServerGoneError,
    UnknownPathError,
)
from selfplay_pipeline.engines.requests import PROBE, PROBE_IDS, RELEASED, request_of
from selfplay_pipeline.engines.types import EngineError

HANG_TIMEOUT = 60.0
"""Seconds without a sign of life after which a server hangs, where nobody says otherwise."""
LOOKS = 4
"""In how many looks one after the other there must be none. Looks are counted and no clock is read, so that this
process may itself be stopped for a while."""


class Server(Protocol):
    """Where a line ends: a server that was launched here, or one that somebody else runs."""

    model: str
    """What it serves, and is to serve when it comes back; empty if that does not matter."""

    @property
    def url(self) -> str:
        """Address of the server. A server that is started again may get another one."""
        ...

    @property
    def key(self) -> str:
        """What a request must bring, empty if nothing."""
        ...

    @property
    def ours(self) -> bool:
        """Whether it was launched here: then its processes can be seen, and it comes back with `model`."""
        ...

    def computes(self) -> bool:
        """Whether one of ours worked since the last call."""
        ...

    async def end(self) -> None:
        """Kill a server that hangs, if it is ours."""
        ...

    async def come_back(self, reason: str) -> None:
        """Return once it answers.

        Args:
            reason: why it is taken for gone.

        Raises:
            EngineError: it does not answer within what is allowed.
        """
        ...


class Line:
    """One server as an engine knows it.

    A watch runs while something is under way. A busy server is not a hung one: its scheduler answers a health check
    between two batches, however many requests wait; and where it cannot, in a long prompt on one slow core or while
    CUDA kernels are compiled, its processes use the processor. So a server hangs when for `hang_timeout` nothing was
    answered, no health check came through its scheduler, and none of its processes worked (or one is stopped, as by
    SIGSTOP). If it works, but nothing comes of it for `request_timeout`, it hangs too. Of a server that was not
    launched here only the answers are known.
    """

    def __init__(
        self,
        server: Server,
        request_timeout: float,
        hang_timeout: float | None,
        attempts: int,
        tell: Callable[[str], None],
    ) -> None:
        """Args:
        hang_timeout: None leaves hanging to `request_timeout`.
        attempts: how often `call` sends a request that fails in a way that may pass; see `retrying`.
        tell: takes one line for people when the server hangs.
        """
        self.server = server
        self.weights: str | None = None
        """Version of the weights that each answer must name; None if nothing is to be served in particular."""
        self.ranks = 1
        """Copies of the model that it has (SGLang's `dp_size`), as far as it was asked."""
        self.returning: asyncio.Task[None] | None = None
        """Waits for a server that is gone."""
        self.lost: EngineError | UserError | None = None
        """Why it was waited for in vain."""
        self.meanwhile: Callable[[], str] = lambda: ""
        """Says, for people, what is done while it is waited for; empty where all wait."""
        self._attempts, self._hang_timeout, self._tell = attempts, hang_timeout, tell
        self._http = Http(request_timeout, server.key)
        self._life = 0
        self._under_way = self._answers = 0
        self._watch: asyncio.Task[None] | None = None
        self._hung = self._gone = ""
        self._released = False
        """Whether the server has given its memory back, so that it must not compute."""
        self._unconfirmed = self._confirmed = 0
        """Number of answers, and how many of them came before a confirmation that the server still serves the model."""
        self._confirming = asyncio.Lock()

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def there(self) -> bool:
        """Whether nothing is known that speaks against asking it."""
        return self.returning is None and self.lost is None

    async def generate(
        self, body: dict[str, Any], headers: Mapping[str, str] | None = None, longest: int = LONGEST_ANSWER
    ) -> dict[str, Any]:
        """POST to `/generate`, once. A server that is gone is waited for from then on.

        Raises:
            ServerGoneError: there is no connection.
            RetriableError: the request may succeed when sent again.
            EngineError: it was refused, or not answered in time.
        """
        assert not self._released, f"{self.url} has no weights: it was not reloaded after it was released"
        life = self._life
        # Asks for a token, through the scheduler; while it loads weights, SGLang 0.5.12 can die of that.
        async with self._watched("/health_generate"):
            try:
                answer = await self._http.send(f"{self.url}/generate", body, headers, longest=longest)
            except ServerGoneError as error:
                self._leave(life, str(error))
                raise
        if "meta_info" not in answer:  # a proxy's word for a server that is not ready
            raise RetriableError(f"{self.url}/generate answered without meta_info")
        self._answers += 1
        return answer

    async def call(self, path: str, body: Any = None, *, attempts: int | None = None) -> dict[str, Any]:
        """POST, or GET without a body, while the server is there.

        Raises:
            ServerGoneError: it is not.
            EngineError: it refused the request, or all attempts failed.
        """
        async for attempt in retrying(attempts or self._attempts):
            with attempt:
                return await self._http.send(f"{self.url}{path}", body)
        raise AssertionError("unreachable")

    async def info(self, *, attempts: int | None = None) -> ModelInfo:
        """What the server says it serves.

        Raises:
            EngineError: it does not answer, or says something else.
        """
        return read(ModelInfo, await self.call("/model_info", attempts=attempts), f"{self.url}/model_info")

    def route(self, rank: int) -> dict[str, int]:
        """Fields of a request that send it to that copy of the model; SGLang warns of them where there is but one."""
        return {"routed_dp_rank": rank} if self.ranks > 1 else {}

    async def find_ranks(self) -> None:
        """Ask how many copies of the model there are; a gateway that does not say so is taken for one.

        Raises:
            EngineError: it does not answer, or says something else.
        """
        try:
            info = read(ServerInfo, await self.call("/server_info"), f"{self.url}/server_info")
        except RefusedError:
            info = ServerInfo()
        self.ranks = info.dp_size

    async def find(self, model: str, *, attempts: int | None = None) -> bool:
        """Returns whether the server says that it has a model's weights; if it does, each answer must name them.

        A model of the hub cannot be loaded from here. There the name decides, and the version that the server says is
        the one that each answer must name.

        Raises:
            EngineError: the server does not answer, or says something else.
            UserError: it serves something else than this model of the hub, or asks for another key.
        """
        info = await self.info(attempts=attempts)
        await self.find_ranks()
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
        """Raises EngineError unless an answer was sampled with the weights that are to be served.

        A program that loads weights without giving them a version leaves the version of the ones before. So a server
        that others can reach is also asked, after the answer, which model it serves; one question is for all answers
        that came before it. Raises ServerGoneError if the server is gone by then, and waits for it from then on.
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
        async with self._watched("/health_generate"), self._confirming:
            if self._confirmed >= mine:
                return
            if not self.there or self._life != life:
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
        """Let the server answer with a model's weights, and prove that it does; it loads them unless it has them.

        A server that is gone does so when it is back, which is waited for from then on. Nothing else is under way.

        Raises:
            EngineError: the server refused, or answers with other weights.
            UserError: the model is one of the hub, and the server serves another one.
        """
        await self._stop_waiting()
        before = self.server.model, self.weights
        self.server.model, self.weights = model, None
        async with self._watched_at_work():
            life = self._life
            try:
                await self._bring(model)
            except ServerGoneError as error:
                if self._released:  # what comes back has to be another one, which has all its memory
                    await self.server.end()
                    self._released = False
                self._leave(life, str(error))
            except (EngineError, UserError):
                self.server.model, self.weights = before
                raise
            else:
                self.lost = None

    async def release(self) -> None:
        """Let the server give its GPU's memory back until the next `reload`. Nothing is under way.

        A server that does not do so is ended, which gives the memory back too; `reload` starts it again.
        """
        async with self._watched_at_work():
            try:
                await self.call("/pause_generation", {}, attempts=3)
                # Returns when the scheduler has nothing left to do, which SGLang asserts when it is released.
                await self.call("/flush_cache?timeout=60", {})
                await self.call("/release_memory_occupation", RELEASED, attempts=1)
                self._released = True
            except EngineError as error:
                self._tell(f"{self.url} is ended, since it did not give its memory back: {error}")
                await self.server.end()

    async def returned(self) -> None:
        """Wait for it as long as is allowed; one that was waited for in vain is looked for once more.

        Raises:
            EngineError: it did not come back, or with another model.
            UserError: it came back and asks for another key.
        """
        if self.lost is not None and self.returning is None:
            self._leave(self._life, self._gone)
        if self.returning is not None:
            await asyncio.wait([self.returning])
        if self.lost is not None:
            raise self.lost

    async def close(self) -> None:
        await self._stop_waiting()
        await self._http.close()

    async def _take_back(self) -> None:
        """Let a server that was released have its memory again, with nothing in it.

        Raises:
            ServerGoneError: it has not got all of it, and is of no use.
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
        try:
            await self._load(Path(model))
        except UnknownPathError:
            info = await self.info()
            if not same_model(info.model_path, model):
                raise
            self._trust(info)

    async def _load(self, checkpoint: Path) -> None:
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
        """Begin to wait for the server of that life, unless this was begun or is over; one waits for all."""
        if self._life == life and self.returning is None:
            self._gone = self._hung or reason
            self.returning = asyncio.create_task(self._return(self.meanwhile()))

    async def _return(self, meanwhile: str) -> None:
        """Let it be started again or come back, and serve what it is to serve, with the same weights as before."""
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
            self.lost, self._hung = None, ""
            self._life += 1
        finally:
            self.returning = None

    async def _stop_waiting(self) -> None:
        if self.returning is not None:
            self.returning.cancel()
            await asyncio.wait([self.returning])

    def _watched_at_work(self) -> AbstractAsyncContextManager[None]:
        """Watch a scheduler that answers nothing meanwhile: only its processes show that it works, or only the port."""
        return self._watched(None if self.server.ours else "/model_info")

    @asynccontextmanager
    async def _watched(self, probe: str | None) -> AsyncIterator[None]:
        """Watch the server while the block, or another one, waits for it.

        Args:
            probe: path to ask for a sign of life.
        """
        self._under_way += 1
        if self._watch is None and self._hang_timeout is not None:
            self._watch = asyncio.create_task(self._look_after(self._hang_timeout / LOOKS, probe))
        try:
            yield
        finally:
            self._under_way -= 1
            if self._under_way == 0 and self._watch is not None:
                self._watch.cancel()
                self._watch = None

    async def _look_after(self, pause: float, probe: str | None) -> None:
        """Until nothing is under way, end a server that hangs, so that its requests fail as with one that is gone."""
        self.server.computes()
        silent = idle = 0
        while True:
            alive, _ = await asyncio.gather(self._sign(pause, probe), asyncio.sleep(pause))
            computes = self.server.computes()
            silent = 0 if alive else silent + 1
            idle = 0 if alive or computes else idle + 1
            if idle < LOOKS and silent * pause < self._http.timeout:
                continue
            self._hung = f"{self.url} hangs: no sign of life for {silent * pause:.0f} s (engine.hang_timeout)"
            self._tell(self._hung)
            await self.server.end()
            await self._http.close()
            silent = idle = 0

    async def _sign(self, seconds: float, probe: str | None) -> bool:
        """Whether something was answered within so many seconds, if need be to the probe."""
        answers = self._answers
        await asyncio.sleep(seconds / 2)
        if self._answers != answers or self.returning is not None:
            return True
        if probe is None:
            return False
        try:
            await self._http.send(f"{self.url}{probe}", timeout=seconds / 2)
        except (RefusedError, UserError):
            return True  # a gateway, which may not know the path, or wants a key for it
        except EngineError:
            return self._answers != answers
        return True


def retrying(attempts: int) -> AsyncRetrying:
    """Attempts of what may pass; waits double from 0.5 s to 8 s."""
    return AsyncRetrying(
        retry=retry_if_exception_type((RetriableError, ServerGoneError)),
        stop=stop_after_attempt(attempts),
        wait=wait_exponential_jitter(initial=0.5, max=8),
        reraise=True,
    )


def version_of(model: str) -> str:
    """Returns the version by which servers name a model's weights: the hash of a folder, or the name of a hub model.

    Raises:
        UserError: the folder cannot be read.
    """
    return content_hash(model) if Path(model).is_dir() else model


def same_model(first: str, second: str) -> bool:
    """Whether two names are of one model: equal, or of one folder."""
    if first == second:
        return True
    try:
        return Path(first).samefile(second)
    except (OSError, ValueError):  # a server may say anything
        return False
