"""An SGLang server that this process launches, watches during its start, and always stops."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import random
import secrets
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import aiohttp

from selfplay_pipeline.core.loopback import ADDRESS, TAKEN, hold_port, loopback_environment, port_of
from selfplay_pipeline.core.processes import Child, spawn, was_logged
from selfplay_pipeline.core.reporting import logger
from selfplay_pipeline.core.server_keys import SERVER_KEY
from selfplay_pipeline.engines.activity import Activity
from selfplay_pipeline.engines.client import version_of
from selfplay_pipeline.engines.types import EngineError

CPU_ARGUMENTS = [
    "--device=cpu",
    # So log-probs agree with those of a trainer in float32.
    "--dtype=float32",
    # `sglang_patches.py` replaces this backend: SGLang's own computes one sequence after the other.
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--disable-overlap-schedule",
    # The cores of an idle server are the trainer's.
    "--sleep-on-idle",
    # The warm-up delays each start.
    "--skip-server-warmup",
    "--log-level-http=warning",
]

CPU_CACHE_BYTES = 2 << 30
"""Largest size of the key-value cache on a CPU; SGLang would take nearly half of the memory and touch all of it."""
STARTUP_SECONDS = 3600
"""Longest time for a start, in which a large model is read from a slow disk; one that does nothing is found earlier."""


@dataclass(frozen=True)
class ServerSpec:
    """Settings of a server to launch.

    Attributes:
        device: `cpu` or `cuda`.
        dtype: Type of weights and cache on a GPU; a CPU computes in float32.
        memory_fraction: Share of a GPU's memory for weights and cache.
        context_length: Longest sequence in tokens; the model's own by default.
        shares_gpu: Whether the server must be able to release its GPU memory.
    """

    model: str
    device: str
    log_path: Path
    tensor_parallel: int = 1
    data_parallel: int = 1
    dtype: str = "bfloat16"
    memory_fraction: float = 0.8
    context_length: int | None = None
    shares_gpu: bool = False
    extra_args: tuple[str, ...] = field(default=())

    def command(self, port: int) -> list[str]:
        """Returns the command line; the same module starts the server on both devices."""
        arguments = [
            f"--model-path={self.model}",
            f"--host={ADDRESS}",
            f"--port={port}",
            f"--tp-size={self.tensor_parallel}",
            f"--dp-size={self.data_parallel}",
            f"--weight-version={version_of(self.model)}",
            # No request asks for constrained output.
            "--grammar-backend=none",
        ]
        if self.context_length is not None:
            arguments.append(f"--context-length={self.context_length}")
        arguments += override_arguments(self.model)
        if self.device == "cpu":
            arguments += [*CPU_ARGUMENTS, f"--max-total-tokens={cpu_cache_tokens(self.model)}"]
        else:
            arguments += [f"--mem-fraction-static={self.memory_fraction}", f"--dtype={self.dtype}"]
            # FlashAttention 3, SGLang 0.5.12's own choice on Hopper, fails to capture CUDA graphs (its issue 22800).
            arguments.append("--attention-backend=flashinfer")
            arguments += ["--enable-memory-saver"] if self.shares_gpu else []
        return [sys.executable, "-m", "selfplay_pipeline.engines.sglang_launch", *arguments, *self.extra_args]

    def environment(self) -> dict[str, str]:
        # A health check that generates can kill SGLang 0.5.12 while weights are being updated.
        common = loopback_environment() | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
        # At its start, SGLang sends itself HTTP requests, which must not go through a proxy.
        direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        common["no_proxy"] = common["NO_PROXY"] = ",".join(filter(None, [direct, ADDRESS]))
        if self.device != "cpu":
            return common | (_runtime_on_path() | _whole_segments() if self.shares_gpu else {})
        # More threads than free cores made the server 5 to 40 times slower.
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        return common | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ""}


def override_arguments(model: str) -> list[str]:
    """Returns arguments that supply what SGLang 0.5.12 reads from a Gemma configuration that lacks it.

    It reads a RoPE scaling factor for every Gemma 3 model (`sglang/srt/models/gemma3_causal.py`), which the 270M
    and 1B models do not have; here it is 1. For Gemma 4 it reads sliding-window layers' heads from keys that it sets
    for the multimodal model alone (`sglang/srt/utils/hf_transformers/config.py`). On a CPU it also needs an expert
    width.
    """
    config = Path(model) / "config.json"
    if not config.is_file() and not Path(model).is_absolute():
        from huggingface_hub import try_to_load_from_cache

        config = Path(str(try_to_load_from_cache(model, "config.json") or config))
    kind = json.loads(config.read_text("utf-8")).get("model_type") if config.is_file() else None
    if kind not in ("gemma3_text", "gemma4_text"):
        return []
    from transformers import AutoConfig

    own = AutoConfig.from_pretrained(model)
    if kind == "gemma4_text":
        size, heads = own.head_dim, own.num_key_value_heads
        widest = own.global_head_dim or size
        changes = {
            "swa_head_dim": size, "swa_v_head_dim": size, "swa_num_key_value_heads": heads,
            "head_dim": widest, "v_head_dim": widest, "num_key_value_heads": own.num_global_key_value_heads or heads,
            "moe_intermediate_size": own.moe_intermediate_size or 0,
        }  # fmt: skip
    elif "factor" in own.rope_parameters["full_attention"]:
        return []
    else:
        whole = own.rope_parameters["full_attention"] | {"factor": 1.0}
        changes = {"rope_parameters": own.rope_parameters | {"full_attention": whole}}
    return [f"--json-model-override-args={json.dumps(changes)}"]


def _runtime_on_path() -> dict[str, str]:
    """Returns environment variables that let the dynamic linker find the CUDA runtime of the installed package.

    SGLang preloads the library of torch-memory-saver into its schedulers. This library is linked to the CUDA runtime
    without a path to it. On a machine whose linker knows no other runtime, the schedulers could not start.
    """
    try:
        files = importlib.metadata.files("nvidia-cuda-runtime") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    folders = [str(Path(file.locate()).parent) for file in files if file.name.startswith("libcudart.so")]
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, [*folders, os.environ.get("LD_LIBRARY_PATH")]))}


def _whole_segments() -> dict[str, str]:
    """Returns PyTorch's memory settings without `expandable_segments`, which torch-memory-saver refuses."""
    changed = {}
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        settings = os.environ.get(name, "").split(",")
        kept = [one for one in settings if one.partition(":")[0].strip() != "expandable_segments"]
        if len(kept) < len(settings):
            logger.info(f"{name}: the server starts without expandable_segments, since it has to release its memory")
            changed[name] = ",".join(kept)
    return changed


def cpu_cache_tokens(model: str) -> int:
    """Returns the number of tokens of a model whose float32 keys and values fit into `CPU_CACHE_BYTES`."""
    try:
        config = json.loads((Path(model) / "config.json").read_text("utf-8"))
        heads = config["num_attention_heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // heads
        per_token = 2 * 4 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_size
    except (OSError, KeyError, ValueError):
        return 32_768
    return int(min(131_072, CPU_CACHE_BYTES // per_token))


class SGLangServer:
    """A launched server. Use it as an async context manager, so that it is stopped however the block ends.

    Attributes:
        model: Model that the server serves, also after it has loaded other weights; a restart begins with it.
        key: Key that each request must carry, so that other users of the machine cannot make the server load their
            weights.
    """

    ours = True

    def __init__(
        self,
        spec: ServerSpec,
        *,
        hang_timeout: float | None = None,
        max_restarts: int = 0,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Args:
        hang_timeout: Seconds for which a starting server may do nothing; None leaves hangs to `STARTUP_SECONDS`.
        max_restarts: Number of restarts after the server has died or hung.
        tell: Takes one-line status messages.
        """
        self.spec, self.model = spec, spec.model
        self.hang_timeout, self.max_restarts = hang_timeout, max_restarts
        self.port = 0
        self._holder: socket.socket | None = None
        self.key = secrets.token_hex(32)
        self.child: Child | None = None
        self._activity: Activity | None = None
        self._restarts = 0
        self._tell = tell

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    async def start(self) -> None:
        """Launch the server and wait until it answers; a transient failure uses up one restart.

        Raises:
            EngineError: The server died or did not answer in time; the message holds the end of its log.
        """
        try:
            await self._launch()
        except _PassingError as error:
            await self.come_back(str(error))

    async def _launch(self) -> None:
        self._holder = _hold_port()
        self.port = port_of(self._holder)
        spec = replace(self.spec, model=self.model)
        written = spec.log_path.stat().st_size if spec.log_path.exists() else 0
        # The key is not on the command line, because every user of the machine can see that.
        environment = spec.environment() | {SERVER_KEY: self.key}
        self.child = spawn(spec.command(self.port), spec.log_path, environment)
        self._activity = Activity(self.child.pid)
        try:
            await self._wait_until_healthy(self.child, self._activity, written)
        except BaseException:
            self.stop()
            raise

    async def _wait_until_healthy(self, child: Child, activity: Activity, written: int) -> None:
        started = worked = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while not await _healthy(http, self.url):
                if (code := child.poll()) is not None:
                    taken = was_logged(TAKEN, child.log_path, written)
                    raise (_PassingError if taken else EngineError)(
                        f"the SGLang server ended with code {code} while starting{f' ({TAKEN})' if taken else ''}; "
                        f"see {child.log_path}:\n{child.last_lines()}"
                    )
                worked = time.monotonic() if activity.working() else worked
                if self.hang_timeout is not None and time.monotonic() - worked > self.hang_timeout:
                    raise _PassingError(
                        f"the SGLang server hangs while starting: it has done nothing for {self.hang_timeout:.0f} s "
                        f"(engine.hang_timeout); see {child.log_path}"
                    )
                if time.monotonic() - started > STARTUP_SECONDS:
                    raise EngineError(
                        f"the SGLang server did not answer within {STARTUP_SECONDS} s; log {child.log_path} ends "
                        f"with:\n{child.last_lines()}"
                    )
                await asyncio.sleep(0.2)

    def computes(self) -> bool:
        return self._activity is not None and self._activity.working()

    async def end(self) -> None:
        await asyncio.to_thread(self.stop)

    async def come_back(self, reason: str) -> None:
        """Wait until the server answers; restart it with the same model unless only a connection broke.

        Raises:
            EngineError: The server does not answer, and no restart is left.
        """
        if self.child is not None and await self._still_lives(self.child):
            return
        if self.child is not None:
            code = self.child.poll()
            what = "does not answer" if code is None else f"has ended with code {code}"
            reason = f"{self.url}: the SGLang server {what}; see {self.spec.log_path}"
            await self.end()
        while self._restarts < self.max_restarts:
            self._restarts += 1
            self._tell(
                f"{reason.splitlines()[0].rstrip(':')}; starting it again with {self.model} "
                f"({self._restarts} of {self.max_restarts})"
            )
            try:
                await self._launch()
            except EngineError as error:
                reason = str(error)
            else:
                self._tell("the SGLang server answers again; interrupted requests continue")
                return
        times = f"; it was started again {self._restarts} times" if self._restarts else ""
        raise EngineError(reason + times)

    async def _still_lives(self, child: Child) -> bool:
        """Whether the server answers. Waits if the server may be dying, until its supervisor has noticed its end."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            for _ in range(DYING_LOOKS):
                if child.poll() is not None:
                    return False
                if await _healthy(http, self.url):
                    return True
                await asyncio.sleep(0.2)
        return False

    def stop(self) -> None:
        """End the server and its workers; returns when they are gone."""
        child, self.child = self.child, None
        if child is not None:
            child.stop()
        if self._holder is not None:
            self._holder.close()

    async def __aenter__(self) -> SGLangServer:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()


DYING_LOOKS = 75
"""Number of health checks, at five a second, of a server that may be dying. They cover the longest time that its
supervisor needs to end the processes of a dead server.
"""


class _PassingError(EngineError):
    """Error of a failed start whose reason may not recur, such as a taken port."""


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _hold_port() -> socket.socket:
    """Reserves a port below the range from which Linux assigns ports by default, so that no process gets a neighbouring
    port by chance.

    SGLang also uses port + 10,000, which must be a valid port too.
    """
    try:
        return hold_port(random.sample(range(20_000, 30_000), 100))
    except OSError:
        raise EngineError("no free port between 20000 and 30000 for the SGLang server") from None
