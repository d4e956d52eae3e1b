"""A server that somebody else started, and that nobody here can start again."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import AsyncRetrying, RetryError, retry_if_not_result, stop_after_delay, wait_exponential

from selfplay_pipeline.engines.http import Http, RefusedError
from selfplay_pipeline.engines.types import EngineError

LOOK = 25.0
"""Seconds for one health check. SGLang says after 20 that nothing comes through."""


class AttachedServer:
    """A server by its address.

    Attributes:
        key: sent with each request; empty if it asks for none.
        model: what it is to serve; empty if that does not matter.
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
        patience: seconds to wait for it when it is gone; after it was waited for once in vain, it is only looked for.
            0 is for whoever sends requests again by himself.
        tell: takes one line for people.
        """
        self.url = url.rstrip("/")
        self.key = key
        self.model = model
        self.patience = patience
        self._tell = tell

    def computes(self) -> bool:
        return False

    async def end(self) -> None:
        """Leave the server alone: it is not ours."""

    async def come_back(self, reason: str) -> None:
        """Wait until something comes through its scheduler, with growing pauses.

        Raises:
            EngineError: nothing did.
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
        raise EngineError(f"{reason}; it did not come back (engine.reconnect_timeout)")

    async def _lives(self, http: Http) -> bool:
        try:
            await http.send(f"{self.url}/health_generate")
        except RefusedError:
            return True  # a gateway, which may not know the path
        except EngineError:
            return False
        return True
