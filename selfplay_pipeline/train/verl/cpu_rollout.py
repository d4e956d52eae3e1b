"""SGLang on a CPU as a verl rollout: a replica that serves, and an adapter that sends it the weights of each step.

verl's own SGLang rollout runs the engine inside a Ray actor and transfers weights as CUDA memory. Here the actor, or
verl's main process, starts the same server that `generate` uses, as a child that ends with it, and weights are
transferred as a safetensors folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from safetensors.torch import save_file
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from selfplay_pipeline.config.schema import EngineConfig
from selfplay_pipeline.core.files import replacing
from selfplay_pipeline.engines.sglang_api import PROBE, PROBE_IDS
from selfplay_pipeline.engines.sglang_engine import SGLangEngine
from selfplay_pipeline.engines.sglang_server import ServerSpec, SGLangServer
from selfplay_pipeline.engines.types import SamplingParams
from selfplay_pipeline.train.verl.rollout_engine import check_sampling

NAME = "sglang_cpu"
"""Value of `rollout.name`; its options in `rollout.engine_kwargs.sglang_cpu` are `folder` (for logs) and
`context_length`.
"""


_here: dict[int, CPUServer] = {}
"""Servers in this process by rank; used in a run without Ray."""


class CPUServer:
    """Owner of one server: a Ray actor, or an object of verl's main process in a run without Ray (`patches.py`)."""

    def __init__(self, model: str, rank: int, folder: str, context_length: int | None) -> None:
        self._server = SGLangServer(
            ServerSpec(
                model=model,
                device="cpu",
                log_path=Path(folder) / f"server_{rank}.log",
                context_length=context_length,
            )
        )
        self._steps = 0
        self._under_way = 0
        self._open = asyncio.Event()
        self._open.set()
        self.loop: asyncio.AbstractEventLoop | None = None
        """Event loop of the episodes; None before the first request."""

    async def start(self) -> str:
        """Start the server and wait until it answers; returns its URL."""
        await self._server.start()
        return self._server.url

    @cached_property
    def _engine(self) -> SGLangEngine:
        """Client of the server, bound to the event loop of the episodes."""
        return SGLangEngine([self._server], hang_timeout=EngineConfig().hang_timeout)

    async def address_and_key(self) -> tuple[str, str]:
        return self._server.url, self._server.key

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling_params: dict[str, Any],
        request_id: str,
        image_data: Any = None,
        video_data: Any = None,
    ) -> TokenOutput:
        """Returns a completion, or its tokens until it was aborted, and the training step of the weights."""
        check_sampling(sampling_params)
        params, self.loop = SamplingParams.of(sampling_params), asyncio.get_running_loop()
        await self._open.wait()
        self._under_way += 1
        try:
            completion = await self._engine.generate_until_aborted(prompt_ids, params, session=request_id)
        finally:
            self._under_way -= 1
        return TokenOutput(
            token_ids=completion.token_ids,
            log_probs=completion.logprobs,
            stop_reason=completion.finish_reason.value,
            extra_fields={
                "global_steps": self._steps,
                "min_global_steps": self._steps,
                "max_global_steps": self._steps,
                "num_cached_tokens": completion.cached_tokens,
            },
        )

    async def set_global_steps(self, steps: int) -> None:
        """Set the training step of the current weights, for later completions."""
        self._steps = steps

    async def abort_all_requests(self) -> None:
        """Break all requests off; later ones wait until `resume_generation`.

        They wait here and not in the server, because a server that is paused answers no health check.
        """
        self._open.clear()
        while self._under_way:
            await self._engine.abort()
            await asyncio.sleep(0.1)

    async def resume_generation(self) -> None:
        self._open.set()


class CPUReplica(RolloutReplica):  # type: ignore[misc]
    """One server, for one rank of the trainer."""

    async def launch_servers(self) -> None:
        options = self.config.engine_kwargs[NAME]
        arguments = str(self.model_config.path), self.replica_rank, options["folder"], options.get("context_length")
        if not ray.is_initialized():
            here = _here[self.replica_rank] = CPUServer(*arguments)
            self._server_address, self._server_handle = await here.start(), here
            return
        # Its address is a loopback one, and it loads weights from a folder of the rank's machine.
        node = await self.workers[0].__ray_call__.remote(lambda worker: ray.get_runtime_context().get_node_id())
        actor = ray.remote(CPUServer).options(
            name=_actor_name(self.replica_rank),
            num_cpus=0,
            max_concurrency=self.max_concurrency,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        )
        server = actor.remote(*arguments)
        self._server_address = await server.start.remote()
        self.servers, self._server_handle = [server], server

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        await self._order("abort_all_requests")

    async def resume_generation(self) -> None:
        await self._order("resume_generation")

    async def _order(self, method: str) -> None:
        """Call a method of the server where its episodes are played: in its actor, or in a thread of this process."""
        if self.servers:
            await asyncio.gather(*(getattr(server, method).remote() for server in self.servers))
            return
        here = _here[self.replica_rank]
        if here.loop is not None:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(getattr(here, method)(), here.loop))

    # A CPU server keeps its memory, and has no request under way when verl calls these.
    async def sleep(self) -> None: ...
    async def wake_up(self) -> None: ...
    async def clear_kv_cache(self) -> None: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def start_profile(self, **kwargs: Any) -> None: ...
    async def stop_profile(self) -> None: ...


class CPUAdapter(BaseRollout):  # type: ignore[misc]
    """Sender of weights in each rank of the trainer; without tensor parallelism, rank N updates server N."""

    async def resume(self, tags: list[str]) -> None:
        """Do nothing: the server never released its memory."""

    async def release(self) -> None:
        """Do nothing: the server keeps its memory."""

    async def update_weights(
        self, weights: Iterator[tuple[str, torch.Tensor]], global_steps: int | None = None, **kwargs: Any
    ) -> None:
        """Write the weights, let the server load them, and log the answer to a probe.

        Args:
            weights: Name and tensor of each weight; taking the next one is a collective operation of all ranks.
            global_steps: Step that made the weights; None during validation, which leaves them unchanged.
        """
        rank = int(os.environ["RANK"])
        url, key = await _ask(rank, "address_and_key")
        engine = SGLangEngine([url], key=key)
        try:
            with tempfile.TemporaryDirectory() as folder:
                write_weights(weights, Path(folder), tied=bool(self.model_config.hf_config.tie_word_embeddings))
                await engine.reload(Path(folder))
            probe = await engine.generate(PROBE_IDS, PROBE)
        finally:
            await engine.close()
        if global_steps is None:
            return
        await _ask(rank, "set_global_steps", global_steps)
        line = {"step": global_steps, "probe_token": probe.token_ids[0], "probe_logprob": probe.logprobs[0]}
        with (Path(self.config.engine_kwargs[NAME]["folder"]) / f"server_{rank}_weights.jsonl").open(
            "a", encoding="utf-8"
        ) as file:
            file.write(json.dumps(line) + "\n")


def write_weights(weights: Iterator[tuple[str, torch.Tensor]], folder: Path, *, tied: bool) -> None:
    """Write weights into a folder for SGLang; consumes the iterator to its end.

    A tied head is left out, since safetensors refuses tensors that share memory; the others are copied for the same
    reason.
    """
    tensors = {name: tensor.detach().clone().contiguous() for name, tensor in weights}
    if tied:
        tensors.pop("lm_head.weight", None)
    with replacing(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})


async def _ask(rank: int, method: str, *arguments: Any) -> Any:
    """Call a method of this rank's server, in this process or in a Ray actor, and return its result."""
    if rank in _here:
        return await getattr(_here[rank], method)(*arguments)
    return await getattr(ray.get_actor(_actor_name(rank)), method).remote(*arguments)


def _actor_name(rank: int) -> str:
    return f"selfplay_cpu_server_{rank}"


RolloutReplicaRegistry.register(NAME, lambda: CPUReplica)
