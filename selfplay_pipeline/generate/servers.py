"""The engine pool of one command, and the endpoint of its chat model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from selfplay_pipeline.engines.pool import EnginePool

if TYPE_CHECKING:
    from selfplay_pipeline.config.partner import PartnerConfig
    from selfplay_pipeline.generate.chat_model import ChatClient


class Servers(EnginePool):
    """An engine pool that also has the endpoint of a chat model, for commands in which one may hold a seat."""

    _chat: ChatClient | None = None

    def chat(self, config: PartnerConfig) -> ChatClient:
        """Returns the chat model's endpoint; one for the whole command, so that its cap counts all that is sent.

        Raises:
            UserError: the key is missing, or the address or the cache cannot be used.
        """
        if self._chat is None:
            from selfplay_pipeline.generate.chat_model import ChatClient

            self._chat = ChatClient(config)
        return self._chat

    async def stop(self) -> None:
        """Stop the engines and close the connections to the chat model; both open again when they are needed."""
        await super().stop()
        if self._chat is not None:
            await self._chat.close()
