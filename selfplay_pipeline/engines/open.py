"""From the configuration to a running engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from selfplay_pipeline.config import EngineConfig, gpu_visible
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.engines.types import Engine, EngineError
from selfplay_pipeline.errors import UserError
from selfplay_pipeline.keys import SERVER_KEY, key_from_environment


def resolve_device(device: str) -> str:
    """`auto` becomes cuda where a GPU is visible, else cpu."""
    return ("cuda" if gpu_visible() else "cpu") if device == "auto" else device


@asynccontextmanager
async def open_engine(
    config: EngineConfig, model: str, log_path: Path, notify: Callable[[str], None] = lambda text: None
) -> AsyncIterator[Engine]:
    """Launch or attach to the engine that serves `model`; what was launched is stopped at the end.

    Args:
        log_path: where a launched server's output goes.
        notify: told in one line what is being waited for.

    Raises:
        EngineError: the server did not come up.
        UserError: an attached server does not answer, refuses the key or serves another model.
    """
    device = resolve_device(config.device)
    if config.kind == "transformers":
        from selfplay_pipeline.engines.transformers_engine import TransformersEngine

        yield TransformersEngine(model, device)
        return

    if config.server_url:
        key = key_from_environment(SERVER_KEY)
        engine = SGLangEngine(config.server_url, key=key, request_timeout=config.request_timeout)
        try:
            await _attach(engine, model, notify)
            yield engine
        finally:
            await engine.close()
        return

    spec = ServerSpec(
        model=model,
        device=device,
        log_path=log_path,
        tensor_parallel=config.tensor_parallel,
        data_parallel=config.data_parallel,
        memory_fraction=config.memory_fraction,
        context_length=config.context_length,
        extra_args=tuple(config.extra_args),
    )

    async with SGLangServer(spec, config.startup_timeout) as server:
        engine = SGLangEngine(
            [server.url], key=server.key, request_timeout=config.request_timeout, alive=lambda: server.running
        )
        try:
            yield engine
        finally:
            await engine.close()


async def _attach(engine: SGLangEngine, model: str, notify: Callable[[str], None]) -> None:
    try:
        served = await engine.served_models()
    except EngineError as error:
        raise UserError(f"--server-url: {error}; is an SGLang server running there?") from None
    for url, name in zip(engine.urls, served, strict=True):
        if name == model or _same_folder(name, model):
            continue
        if not Path(model).is_dir():
            raise UserError(f"--server-url: {url} serves {name}, not {model}; start it with that model")
        notify(f"loading {model} into {url}, which served {name}")
        await engine.reload(Path(model))
        return


def _same_folder(first: str, second: str) -> bool:
    return Path(first).exists() and Path(second).exists() and Path(first).resolve() == Path(second).resolve()


def model_context_length(model: str, configured: int | None) -> int:
    """Longest sequence in tokens: what was configured, at most what the model was made for.

    Raises:
        UserError: the model's configuration cannot be read.
    """
    from transformers import AutoConfig

    try:
        own = int(AutoConfig.from_pretrained(model).max_position_embeddings)
    except (OSError, ValueError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"model {model}: cannot be loaded ({reason}); give a folder or a hub name") from None
    return min(own, configured) if configured else own
