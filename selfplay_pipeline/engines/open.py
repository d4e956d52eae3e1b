"""Facts about a model and this machine that an engine needs before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfplay_pipeline.config import gpu_visible
from selfplay_pipeline.core.errors import UserError, first_line
from selfplay_pipeline.core.hub import look_for

MAX_RESTARTS = 3
"""How often a launched server that has died or hangs is started again, with the weights that it served last."""


def resolve_device(device: str) -> str:
    """`auto` becomes cuda where a GPU is visible, else cpu."""
    return ("cuda" if gpu_visible() else "cpu") if device == "auto" else device


@asynccontextmanager
async def open_engine(
    config: EngineConfig,
    model: str,
    log_path: Path,
    notify: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], None] = lambda text: None,
    *,
    shares_gpu: bool = False,
    alone: bool = False,
) -> AsyncIterator[Engine]:
    """Launch or attach to the engine that serves `model`; what was launched is stopped at the end.

    Args:
        log_path: where a launched server's output goes.
        notify: told in one line what is being waited for, while this is.
        tell: told in one line what happens to a server later.
        shares_gpu: whether the engine will be released (`Engine.release`).
        alone: whether no other command may use the servers meanwhile, because other weights will be loaded into them.

    Raises:
        EngineError: the server did not come up.
        UserError: an attached server does not answer, refuses the key, serves another hub model, or is in use.
    """
    device = resolve_device(config.device)
    if config.kind == "transformers":
        from selfplay_pipeline.engines.transformers_engine import TransformersEngine

        yield TransformersEngine(model, device)
        return

    vocabulary = model_vocabulary(model)

    def engine_of(servers: Sequence[Server], holds: Holds | None = None) -> SGLangEngine:
        return SGLangEngine(
            servers,
            holds=holds,
            request_timeout=config.request_timeout,
            hang_timeout=config.hang_timeout,
            vocabulary=vocabulary,
            tell=tell,
        )

    if config.server_url:
        key = key_from_environment(SERVER_KEY)
        attached = [
            AttachedServer(url, key=key, patience=config.reconnect_timeout, tell=tell) for url in config.server_url
        ]
        async with engine_of(attached, Holds(config.server_url, config.startup_timeout, tell)) as engine:
            try:
                await engine.serve(model, alone=alone)
            except UserError as error:
                raise UserError(f"--server-url: {error}") from None
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
        config.startup_timeout,
        hang_timeout=config.hang_timeout,
        max_restarts=MAX_RESTARTS,
        tell=tell,
    )
    notify(f"reading {model}")
    await asyncio.to_thread(version_of, model)  # while nothing waits for it; the hash of each file is kept
    async with launched, engine_of([launched]) as engine:
        await engine.serve(model)
        yield engine


def model_vocabulary(model: str) -> int | None:
    """Number of tokens that a model knows, None where its configuration does not say.

    Raises:
        UserError: the model's configuration cannot be read.
    """
    size = getattr(_config_of(model), "vocab_size", None)
    return size if isinstance(size, int) else None


def model_context_length(model: str, configured: int | None) -> int:
    """Longest sequence in tokens: what was configured, at most what the model was made for.

    Raises:
        UserError: the model's configuration cannot be read.
    """
    try:
        own = int(_config_of(model).max_position_embeddings)
    except (ValueError, AttributeError) as error:
        raise _unusable(model, error) from None
    return min(own, configured) if configured else own


def _config_of(model: str) -> Any:
    if not Path(model).exists():
        look_for(model)
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise _unusable(model, error) from None


def _unusable(model: str, error: Exception) -> UserError:
    return UserError(f"model {model}: cannot be loaded ({first_line(error)}); give a folder or a hub name")
