"""A server of either kind, and the watchdog that ends it if it hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.engines.http import Http, RefusedError
from selfplay_pipeline.engines.types import EngineError

LOOKS = 4
"""Number of consecutive checks without a sign of life after which a server counts as hung. The watchdog counts checks
and reads no clock, so that this process may itself be stopped for a while.
"""


class Server(Protocol):
    """A server that this process launched, or one that another program runs."""

    model: str
    """Model that the server must serve, also after a restart; empty if any model will do."""

    @property
    def url(self) -> str:
        """Address of the server; a restart may change it."""
        ...

    @property
    def key(self) -> str:
        """Key that each request must carry; empty if the server needs none."""
        ...

    @property
    def ours(self) -> bool:
        """Whether this process launched the server. If so, its processes are visible, and a restart loads `model`."""
        ...

    def computes(self) -> bool:
        """Whether the processes of a launched server have worked since the last call."""
        ...

    async def end(self) -> None:
        """Kill a hung server; does nothing to a server of another program."""
        ...

    async def come_back(self, reason: str) -> None:
        """Wait until the server answers.

        Args:
            reason: Error that made the server count as gone.

        Raises:
            EngineError: The server does not answer within the allowed time or restarts.
        """
        ...


class Watchdog:
    """Watchdog of one server, which runs while a request is under way.

    A busy server is not hung: its scheduler answers a health check between two batches, however many requests wait. If
    it cannot, in a long prompt on one slow core or while CUDA kernels are compiled, its processes use the processor. So
    a server counts as hung if, for `hang_timeout`, it gave no answer, no health check passed its scheduler, and none of
    its processes worked (or one is stopped, as by SIGSTOP). A server that works but answers nothing for the timeout of
    a request counts as hung too. The processes of a server that was not launched here are unknown; only its answers
    count.
    """

    def __init__(
        self,
        server: Server,
        http: Http,
        hang_timeout: float | None,
        returning: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        """Args:
        http: Connections to the server; they are closed if it hangs.
        hang_timeout: Seconds without a sign of life after which the server counts as hung; None never watches.
        returning: Whether somebody waits already for the server to come back.
        tell: Takes the one-line message that the server hangs.
        """
        self.hung = ""
        """Message that the server hangs; whoever brings it back empties it."""
        self.answers = 0
        """Number of answers to requests, which the client counts; they are signs of life."""
        self._server, self._http, self._returning, self._tell = server, http, returning, tell
        self._hang_timeout = hang_timeout
        self._under_way = 0
        self._watch: asyncio.Task[None] | None = None

    def watching_work(self) -> AbstractAsyncContextManager[None]:
        """Watch a server while its scheduler cannot answer, for example while it loads weights.

        Signs of life are then the work of its processes, or answers of the HTTP port of a server that was not launched
        here.
        """
        return self.watching(None if self._server.ours else "/model_info")

    @asynccontextmanager
    async def watching(self, probe: str | None) -> AsyncIterator[None]:
        """Watch the server for the duration of a block; concurrent blocks share one watchdog.

        Args:
            probe: Path of the health check; None checks only the processes.
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
        """End a hung server, so that its requests fail as if it were gone.

        Runs until it is cancelled.
        """
        self._server.computes()  # begins the measurement of CPU seconds
        silent = idle = 0
        while True:
            alive, _ = await asyncio.gather(self._sign(pause, probe), asyncio.sleep(pause))
            computes = self._server.computes()
            silent = 0 if alive else silent + 1
            idle = 0 if alive or computes else idle + 1
            if idle < LOOKS and silent * pause < self._http.timeout:
                continue
            self.hung = f"{self._server.url} hangs: no sign of life for {silent * pause:.0f} s (engine.hang_timeout)"
            self._tell(self.hung)
            await self._server.end()
            await self._http.close()
            silent = idle = 0

    async def _sign(self, seconds: float, probe: str | None) -> bool:
        """Whether the server answered a request or the probe within `seconds`."""
        answers = self.answers
        # Usual answers are a sign too; the probe is only sent if none came in half of the time.
        await asyncio.sleep(seconds / 2)
        if self.answers != answers or self._returning():
            return True
        if probe is None:
            return False
        try:
            await self._http.send(f"{self._server.url}{probe}", timeout=seconds / 2)
        except (RefusedError, UserError):
            return True  # a gateway, which may not know the path, or wants a key for it
        except EngineError:
            return self.answers != answers
        return True
