"""An SGLang server that another program launched and that this process cannot restart."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import AsyncRetrying, RetryError, retry_if_not_result, stop_after_delay, wait_exponential

from selfplay_pipeline.engines.http import Http, RefusedError
from selfplay_pipeline.engines.types import EngineError

LOOK = 25.0
"""Seconds for one health check. SGLang itself reports a failure after 20 s."""


class AttachedServer:
    """An SGLang server, known by its address.

    Attributes:
        key: Key sent with each request; empty if the server needs none.
        model: Model that the server must serve; empty if any model will do.
    """

    ours = False

    def __init__(
        self,
        url: str,
        *,
        key: str = "",
        model: str = "",
        patience: float = 0.0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Args:
        patience: Seconds to wait for a server that is gone. After a failed wait, later calls only check the server
            once. Use 0 if the caller retries.
        tell: Takes one-line status messages.
        """
        self.url = url.rstrip("/")
        self.key = key
        self.model = model
        self.patience = patience
        self._tell = tell

    def computes(self) -> bool:
        return False

    async def end(self) -> None:
        """Does nothing: the server belongs to another program."""

    async def come_back(self, reason: str) -> None:
        """Wait, with growing pauses, until a health check that goes through the scheduler succeeds.

        Raises:
            EngineError: The server did not come back.
        """
        if not self.patience:
            return
        http = Http(LOOK, self.key)
        try:
            if await self._lives(http):
                return
            if self.patience > 0:
                self._tell(f"{reason}; waiting up to {self.patience:.0f} s for it")
                waiting = AsyncRetrying(
                    retry=retry_if_not_result(bool),
                    stop=stop_after_delay(self.patience),
                    wait=wait_exponential(multiplier=0.5, max=8),
                )
                try:
                    await waiting(self._lives, http)
                except RetryError:
                    self.patience = -1
                else:
                    self._tell(f"{self.url} answers again")
                    return
        finally:
            await http.close()
        raise EngineError(f"{reason}; it did not come back (engine.hang_timeout)")

    async def _lives(self, http: Http) -> bool:
        try:
            await http.send(f"{self.url}/health_generate")
        except RefusedError:
            return True  # a gateway, which may not know the path
        except EngineError:
            return False
        return True
