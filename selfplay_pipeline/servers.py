"""The engines of one command: opened when first needed, always serving what was last asked for, always stopped."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfplay_pipeline.config import EngineConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.reporting import logger, waiting
from selfplay_pipeline.engines.line import version_of
from selfplay_pipeline.engines.open import open_engine
from selfplay_pipeline.engines.types import Engine

if TYPE_CHECKING:
    from selfplay_pipeline.partners.client import ChatClient
    from selfplay_pipeline.partners.config import PartnerConfig


class PolicyServer:
    """One engine. It is reloaded for other weights, and started anew for a model of another architecture."""

    def __init__(self, config: EngineConfig, log_path: Path, *, shares_gpu: bool = False, alone: bool = False) -> None:
        self.config, self.log_path, self.shares_gpu, self.alone = config, log_path, shares_gpu, alone
        self.engine: Engine | None = None
        self.serving = self.version = ""
        self._released = False
        self._context: AbstractAsyncContextManager[Engine] | None = None

    async def serve(self, checkpoint: str) -> Engine:
        """The engine with this checkpoint's weights: started, reloaded or as it is."""
        version = await asyncio.to_thread(version_of, checkpoint)
        other = self._released or (self.serving, self.version) != (checkpoint, version)
        if self.engine is not None and other and not _reloadable(self.serving, checkpoint):
            await self.stop()
        if self.engine is None:
            with waiting(f"starting the {self.config.kind} engine for {checkpoint}") as tell:
                self._context = open_engine(
                    self.config, checkpoint, self.log_path, tell, logger.info, shares_gpu=self.shares_gpu,
                    alone=self.alone,
                )  # fmt: skip
                self.engine = await self._context.__aenter__()
        elif other:
            await self.engine.reload(Path(checkpoint))
        self.serving, self.version, self._released = checkpoint, version, False
        return self.engine

    async def release(self) -> None:
        """Give the GPU's memory back, if the engine was started, until it is to serve again."""
        if self.engine is not None:
            await self.engine.release()
            self._released = True

    async def stop(self) -> None:
        """End the engine, if it was started."""
        if self._context is not None:
            context, self._context, self.engine = self._context, None, None
            await context.__aexit__(None, None, None)


class Servers:
    """A server for the policy, a second one for another checkpoint in other seats, and a chat model's endpoint."""

    def __init__(
        self, config: EngineConfig, folder: Path, *, two: bool = False, shares_gpu: bool = False, alone: bool = False
    ) -> None:
        """Args:
        folder: gets the servers' logs.
        two: whether both will be needed; two launched servers share a GPU's memory.
        shares_gpu: whether a trainer needs that memory at times (`release`).
        alone: whether no other command may use attached servers meanwhile, because other weights will be loaded.

        Raises:
            UserError: two are needed, but the command was told to attach to running servers.
        """
        if two and config.server_url:
            raise UserError(
                "--server-url: another checkpoint in the other seat needs a server of its own; leave out --server-url"
            )
        if two:
            config = config.model_copy(update={"memory_fraction": config.memory_fraction / 2})
        self.policy = PolicyServer(config, folder / "server.log", shares_gpu=shares_gpu, alone=alone)
        self.partner = PolicyServer(config, folder / "partner_server.log", shares_gpu=shares_gpu)
        self._chat: ChatClient | None = None

    def chat(self, config: PartnerConfig) -> ChatClient:
        """The chat model's endpoint; one for the whole command, so that its cap counts all that is sent.

        Raises:
            UserError: the key is missing, or the address or the cache cannot be used.
        """
        if self._chat is None:
            from selfplay_pipeline.partners.client import ChatClient

            self._chat = ChatClient(config)
        return self._chat

    async def __aenter__(self) -> Servers:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def release(self) -> None:
        """Give the GPU's memory back; the engines that were started stay, and take it again when they are needed."""
        await self.partner.release()
        await self.policy.release()

    async def stop(self) -> None:
        """End the engines that were started; they are started again when needed."""
        try:
            await self.partner.stop()
        finally:
            await self.policy.stop()
        if self._chat is not None:
            await self._chat.close()


_SHAPE = ("architectures", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "vocab_size", "tie_word_embeddings")  # fmt: skip


def _reloadable(serving: str, checkpoint: str) -> bool:
    """Whether a server of one model can load the other's weights."""
    if not Path(checkpoint).is_dir():
        return False
    return _shape(serving) == _shape(checkpoint) or not Path(serving).is_dir()


def _shape(model: str) -> dict[str, Any]:
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {key: config.get(key) for key in _SHAPE}
