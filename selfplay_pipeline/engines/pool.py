"""Pool of engines: each serves one checkpoint at a time, starts when it is needed, and is always stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from selfplay_pipeline.config.schema import EngineConfig
from selfplay_pipeline.core.errors import UserError
from selfplay_pipeline.core.gpus import Device
from selfplay_pipeline.core.model_sizes import model_vocabulary
from selfplay_pipeline.core.reporting import logger, waiting
from selfplay_pipeline.core.server_keys import SERVER_KEY, key_from_environment
from selfplay_pipeline.engines.architecture import differences
from selfplay_pipeline.engines.attached import AttachedServer
from selfplay_pipeline.engines.client import version_of
from selfplay_pipeline.engines.server_lock import ServerLocks, in_lock_order
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.engines.types import Completion, Engine, EngineError, LoadingEngine, SamplingParams
from selfplay_pipeline.engines.watchdog import Server

MAX_RESTARTS = 3
"""Number of restarts of a launched server that died or hung; each restart loads the last weights."""
HANGS_TO_RETURN = 2
"""Seconds to wait for an attached server that is gone, in multiples of `engine.hang_timeout`."""


def plan(config: EngineConfig, at_once: int) -> list[EngineConfig]:
    """Returns the configuration of each engine of a pool.

    Launched servers share the memory of a GPU equally. Attached servers are divided among the engines.

    Args:
        at_once: Largest number of checkpoints that are served at the same time; each needs an engine.

    Raises:
        UserError: Fewer servers are attached than checkpoints are served at the same time.
    """
    if config.kind == "transformers" or not config.server_url:
        return [config.model_copy(update={"memory_fraction": config.memory_fraction / at_once}) for _ in range(at_once)]
    if at_once < 2:
        return [config] * at_once
    urls = in_lock_order(config.server_url)
    if len(urls) < at_once:
        raise UserError(
            f"engine.server_url: each of the {at_once} checkpoints in one episode needs a server of its own, and "
            f"{len(urls)} {'is' if len(urls) == 1 else 'are'} given; give the addresses of more servers, or leave the "
            "key out"
        )
    # Engines lock their servers one after the other, so the order of all locks has to be the common one.
    bounds = [number * len(urls) // at_once for number in range(at_once + 1)]
    return [config.model_copy(update={"server_url": urls[begin:end]}) for begin, end in pairwise(bounds)]


def engine_for(held: Sequence[str], checkpoint: str, keep: Collection[str] = ()) -> int:
    """Returns the index in `held` of the engine that should serve a checkpoint.

    An engine that serves the checkpoint already comes first, then one that has not started, then one whose checkpoint
    is not needed now.

    Args:
        held: Checkpoint of each engine; empty if the engine has not started.
        keep: Other checkpoints that are needed at the same time.

    Raises:
        UserError: More checkpoints are needed at the same time than there are engines.
    """
    needed = {checkpoint, *keep}
    if len(needed) > len(held):
        raise UserError(
            f"{', '.join(sorted(needed))}: {len(needed)} checkpoints are needed at the same time, and the engine pool "
            f"serves {len(held)} (EnginePool, at_once)"
        )
    numbers = range(len(held))
    best = [number for number in numbers if held[number] == checkpoint]
    unused = [number for number in numbers if not held[number]]
    others = [number for number in numbers if held[number] not in needed]
    return [*best, *unused, *others][0]


class EnginePool:
    """Engines for the checkpoints of one command.

    A checkpoint keeps its engine while it is needed. After that another checkpoint gets the engine, so the pool can
    serve any number of checkpoints one after the other.
    """

    def __init__(
        self,
        engine: EngineConfig,
        device: Device,
        folder: Path,
        *,
        at_once: int = 1,
        shares_gpu: bool = False,
        alone: bool = False,
    ) -> None:
        """Args:
        engine: Configuration of the engine, which all engines of the pool share.
        device: Device of launched engines.
        folder: Folder for the logs of launched servers.
        at_once: Largest number of checkpoints that are served at the same time.
        shares_gpu: Whether a trainer needs the GPU's memory at times (`release`).
        alone: Whether no other command may use attached servers until the end, because other weights will be loaded.
            Attached servers that are divided among checkpoints are always locked in this way.

        Raises:
            UserError: Fewer servers are attached than checkpoints are served at the same time.
        """
        configs = plan(engine, at_once)
        self._slots = [
            _Slot(one, device, folder / log_name(number), shares_gpu=shares_gpu, alone=alone or len(configs) > 1)
            for number, one in enumerate(configs)
        ]
        self._choosing = asyncio.Lock()

    async def serving(self, checkpoint: str, *, keep: Collection[str] = ()) -> Engine:
        """Returns an engine that answers only with a checkpoint's current weights.

        The engine refuses requests once the pool has given its server to another checkpoint.

        Args:
            keep: Other checkpoints of the same episodes; their engines must not be reloaded.

        Raises:
            EngineError: A server did not start, or could not load the weights.
            UserError: More checkpoints are needed at the same time than the pool serves, or an attached server does not
                answer, refuses the key, serves another hub model or is in use.
        """
        async with self._choosing:
            held = [slot.serves.checkpoint for slot in self._slots]
            slot = self._slots[engine_for(held, checkpoint, keep)]
            await slot.serve(checkpoint)
            return _Served(slot, slot.serves)

    async def release(self, checkpoint: str) -> None:
        """Release the GPU memory; the engines keep running, and allocate it again when they are next needed.

        Args:
            checkpoint: Weights that an attached server gets which this command has not used yet, because only a server
                that is locked and known releases its memory.
        """
        for slot in reversed(self._slots):
            await slot.release(checkpoint)

    async def stop(self) -> None:
        """Stop the engines; they start again when they are needed."""
        async with AsyncExitStack() as stack:  # if one fails to stop, the others are still stopped
            for slot in self._slots:
                stack.push_async_callback(slot.stop)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()


def log_name(number: int) -> str:
    """Returns the name of a server's log file, given the server's number in the pool."""
    return f"server_{number + 1}.log" if number else "server.log"


@dataclass(frozen=True)
class _Weights:
    """A checkpoint and the version of the weights in it."""

    checkpoint: str
    version: str


_NOTHING = _Weights("", "")


class _Slot:
    """Holder of one engine, which is reloaded for other weights and restarted for another architecture."""

    def __init__(self, config: EngineConfig, device: Device, log_path: Path, *, shares_gpu: bool, alone: bool) -> None:
        self._config, self._device, self._log_path = config, device, log_path
        self._shares_gpu, self._alone = shares_gpu, alone
        self._context: AbstractAsyncContextManager[LoadingEngine] | None = None
        self._released = False
        self.engine: LoadingEngine | None = None
        self.serves = _NOTHING

    async def serve(self, checkpoint: str) -> None:
        wanted = _Weights(checkpoint, await asyncio.to_thread(version_of, checkpoint))
        before, other = self.serves, self._released or self.serves != wanted
        if other:
            self.serves = _NOTHING
        if self.engine is not None and other and not _reloadable(before.checkpoint, checkpoint):
            await self.stop()
        if self.engine is None:
            with waiting(f"starting the {self._config.kind} engine for {checkpoint}") as notify:
                self._context = open_engine(
                    self._config, self._device, checkpoint, self._log_path, notify, logger.info,
                    shares_gpu=self._shares_gpu, alone=self._alone,
                )  # fmt: skip
                self.engine = await self._context.__aenter__()
        elif other:
            await self.engine.reload(Path(checkpoint))
        self.serves, self._released = wanted, False

    async def release(self, checkpoint: str) -> None:
        if self.engine is None and self._config.server_url:
            await self.serve(checkpoint)
        if self.engine is not None:
            await self.engine.release()
            self._released = True

    async def stop(self) -> None:
        if self._context is not None:
            context, self._context, self.engine, self.serves = self._context, None, None, _NOTHING
            await context.__aexit__(None, None, None)


@dataclass(frozen=True)
class _Served:
    """Engine that a caller gets; it is valid only while its server serves this checkpoint."""

    slot: _Slot
    weights: _Weights

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, *, session: str = "") -> Completion:
        completion = await self._engine().generate(prompt_ids, params, session=session)
        self._engine()  # other weights may have been loaded meanwhile
        return completion

    def _engine(self) -> LoadingEngine:
        if self.slot.engine is None or self.slot.serves != self.weights:
            raise EngineError(
                f"{self.weights.checkpoint} is not served any more: this command gave its engine to "
                f"{self.slot.serves.checkpoint or 'nothing'}; serve both at the same time (EnginePool, at_once)"
            )
        return self.slot.engine


def _reloadable(serving: str, checkpoint: str) -> bool:
    """Whether a server of one model can load the weights of another."""
    if serving == checkpoint or not Path(checkpoint).is_dir():
        return Path(checkpoint).is_dir()
    return differences(serving, checkpoint) == []


@asynccontextmanager
async def open_engine(
    config: EngineConfig,
    device: Device,
    model: str,
    log_path: Path,
    notify: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], None] = lambda text: None,
    *,
    shares_gpu: bool = False,
    alone: bool = False,
) -> AsyncIterator[LoadingEngine]:
    """Yields an engine that serves `model`; stops a launched server at the end.

    Args:
        log_path: File for the output of a launched server.
        notify: Takes one-line status messages during the start.
        tell: Takes one-line status messages about a running server.
        shares_gpu: Whether the engine will be released (`Engine.release`).
        alone: Whether no other command may use the servers meanwhile, because other weights will be loaded into them.

    Raises:
        EngineError: The server did not start.
        UserError: An attached server does not answer, refuses the key, serves another hub model, or is in use.
    """
    if config.kind == "transformers":
        from selfplay_pipeline.engines.transformers_engine import TransformersEngine

        yield TransformersEngine(model, device)
        return

    vocabulary = model_vocabulary(model)

    def engine_of(servers: Sequence[Server], locks: ServerLocks | None = None) -> SGLangEngine:
        return SGLangEngine(servers, locks=locks, hang_timeout=config.hang_timeout, vocabulary=vocabulary, tell=tell)

    if config.server_url:
        key = key_from_environment(SERVER_KEY)
        patience = HANGS_TO_RETURN * config.hang_timeout
        attached = [AttachedServer(url, key=key, patience=patience, tell=tell) for url in config.server_url]
        async with engine_of(attached, ServerLocks(config.server_url, tell)) as engine:
            try:
                await engine.serve(model, alone=alone)
            except UserError as error:
                raise UserError(f"engine.server_url: {error}") from None
            yield engine
        return

    spec = ServerSpec(
        model=model,
        device=device,
        log_path=log_path,
        tensor_parallel=config.tensor_parallel,
        data_parallel=config.data_parallel,
        memory_fraction=config.memory_fraction,
        context_length=config.context_length,
        shares_gpu=shares_gpu,
        extra_args=tuple(config.extra_args),
    )
    launched = SGLangServer(
        spec,
        hang_timeout=config.hang_timeout,
        max_restarts=MAX_RESTARTS,
        tell=tell,
    )
    notify(f"reading {model}")
    await asyncio.to_thread(version_of, model)  # before the server starts; the hash of each file is cached
    async with launched, engine_of([launched]) as engine:
        await engine.serve(model)
        yield engine
