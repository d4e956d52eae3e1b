"""Engine pool of one command, with the client of its chat model."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from selfplay_pipeline.engines.pool import EnginePool

if TYPE_CHECKING:
    from selfplay_pipeline.config.partner import PartnerConfig
    from selfplay_pipeline.config.schema import Config
    from selfplay_pipeline.generate.chat_model import ChatClient


class Servers(EnginePool):
    """An engine pool with the client of a chat model, for commands in which a chat model may hold a seat."""

    _chat: ChatClient | None = None

    def chat(self, config: PartnerConfig) -> ChatClient:
        """Returns the client of the chat model; the whole command shares one, so that its cap counts all requests.

        Raises:
            UserError: The key is missing, or the address or the cache cannot be used.
        """
        if self._chat is None:
            from selfplay_pipeline.generate.chat_model import ChatClient

            self._chat = ChatClient(config)
        return self._chat

    async def stop(self) -> None:
        """Stop the engines and close the connections to the chat model; later use starts both again."""
        await super().stop()
        if self._chat is not None:
            await self._chat.close()


@asynccontextmanager
async def given_or_own(
    servers: Servers | None, config: Config, folder: Path, at_once: int = 1
) -> AsyncIterator[Servers]:
    """Yields the given servers; without any, yields new ones, and stops them afterwards."""
    if servers is not None:
        yield servers
    else:
        async with Servers(config, folder, at_once=at_once) as own:
            yield own
