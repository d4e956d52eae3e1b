"""An SGLang server of our own: launched, watched while it comes up, and always stopped."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from selfplay_pipeline.engines.types import EngineError
from selfplay_pipeline.keys import SERVER_KEY
from selfplay_pipeline.loopback import ADDRESS, loopback_environment
from selfplay_pipeline.processes import Child, spawn

CPU_ARGUMENTS = [
    "--device=cpu",
    "--dtype=float32",
    "--attention-backend=torch_native",
    "--sampling-backend=pytorch",
    "--grammar-backend=none",
    "--disable-overlap-schedule",
    "--sleep-on-idle",
]

CPU_CACHE_BYTES = 2 << 30
"""Bound of the key-value cache on a CPU; SGLang would take nearly half of the memory and touch all of it."""


@dataclass(frozen=True)
class ServerSpec:
    """What to launch.

    Attributes:
        device: `cpu` or `cuda`.
        dtype: of weights and cache on a GPU; a CPU computes in float32.
        memory_fraction: share of a GPU's memory for weights and cache.
        context_length: longest sequence in tokens; the model's own by default.
    """

    model: str
    device: str
    log_path: Path
    tensor_parallel: int = 1
    data_parallel: int = 1
    dtype: str = "bfloat16"
    memory_fraction: float = 0.8
    context_length: int | None = None
    extra_args: tuple[str, ...] = field(default=())

    def command(self, port: int) -> list[str]:
        """The command line; the same module starts the server on either device."""
        arguments = [
            f"--model-path={self.model}",
            f"--host={ADDRESS}",
            f"--port={port}",
            f"--tp-size={self.tensor_parallel}",
            f"--dp-size={self.data_parallel}",
        ]
        if self.context_length is not None:
            arguments.append(f"--context-length={self.context_length}")
        if self.device == "cpu":
            arguments += [*CPU_ARGUMENTS, f"--max-total-tokens={cpu_cache_tokens(self.model)}"]
        else:
            arguments += [f"--mem-fraction-static={self.memory_fraction}", f"--dtype={self.dtype}"]
        return [sys.executable, "-m", "selfplay_pipeline.engines.sglang_launch", *arguments, *self.extra_args]

    def environment(self) -> dict[str, str]:
        # A health check that generates can kill SGLang 0.5.12 while weights are being updated.
        common = loopback_environment() | {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
        # While it starts, SGLang asks itself over HTTP, and through a proxy it would not be found.
        direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        common["no_proxy"] = common["NO_PROXY"] = ",".join(filter(None, [direct, ADDRESS]))
        if self.device != "cpu":
            return common
        # More threads than free cores made the server 5 to 40 times slower.
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        return common | {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": threads, "CUDA_VISIBLE_DEVICES": ""}


def cpu_cache_tokens(model: str) -> int:
    """Tokens of float32 key-value cache that `CPU_CACHE_BYTES` hold, for a local model folder."""
    try:
        config = json.loads((Path(model) / "config.json").read_text())
        heads = config["num_attention_heads"]
        head_size = config.get("head_dim") or config["hidden_size"] // heads
        per_token = 2 * 4 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * head_size
    except (OSError, KeyError, ValueError):
        return 32_768
    return int(min(262_144, CPU_CACHE_BYTES // per_token))


class SGLangServer:
    """A launched server; use as an async context manager so that it is stopped however the block ends.

    Attributes:
        key: what a request must bring, so that other users of the machine cannot make the server load their weights.
    """

    def __init__(self, spec: ServerSpec, startup_timeout: float = 900) -> None:
        self.spec = spec
        self.startup_timeout = startup_timeout
        self.port = 0
        self.key = secrets.token_hex(32)
        self.child: Child | None = None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}"

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.poll() is None

    async def start(self) -> None:
        """Launch and wait until the server answers.

        Raises:
            EngineError: it died or did not answer in time; the message holds the end of its log.
        """
        self.port = _free_port()
        # Not on the command line, which every user of the machine can see.
        environment = self.spec.environment() | {SERVER_KEY: self.key}
        self.child = spawn(self.spec.command(self.port), self.spec.log_path, environment)
        try:
            await self._wait_until_healthy(self.child)
        except BaseException:
            self.stop()
            raise

    async def _wait_until_healthy(self, child: Child) -> None:
        started = time.monotonic()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            while not await _healthy(http, self.url):
                waited = time.monotonic() - started
                if (code := child.poll()) is not None:
                    raise EngineError(
                        f"the SGLang server ended with code {code} while starting; log {child.log_path} ends with:\n"
                        + child.last_lines()
                    )
                if waited > self.startup_timeout:
                    raise EngineError(
                        f"the SGLang server did not answer within {self.startup_timeout:.0f} s "
                        f"(engine.startup_timeout); log {child.log_path} ends with:\n{child.last_lines()}"
                    )
                await asyncio.sleep(0.5)

    def stop(self) -> None:
        """End the server and its workers; returns when they are gone."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    async def __aenter__(self) -> SGLangServer:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stop()


async def _healthy(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(f"{url}/health") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


def _free_port() -> int:
    """A port that nothing listens on. SGLang also uses port + 10,000, which must be a port too."""
    for port in random.sample(range(20_000, 30_000), 100):
        with socket.socket() as probe:
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return port
    raise EngineError("no free port between 20000 and 30000 for the SGLang server")
